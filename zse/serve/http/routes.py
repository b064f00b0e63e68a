"""Rows of the table of hot routes: what is served, and what its description says of it.

A route cannot be served without its row, nor described without being served. Whoever adds one adds
its row to ``zse.serve.app`` beside its handler.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import msgspec

_CONVERTER = re.compile(r":\w+\}")


def _answered() -> dict[str, str]:
    return {"200": "Answer"}


@record
class HotRoute:
    """One route on plain Starlette."""

    path: str
    """As Starlette reads it: ``/v1/models/{model:path}``."""
    handler: Callable[..., Awaitable[Any]]
    """Takes a request and returns a response, or an ASGI application that is one; or ``Late``."""
    summary: str
    """What it does, a sentence."""
    method: str = "GET"
    body: Callable[[], type[msgspec.Struct]] | None = None
    """Says which struct the body is read into; called when somebody asks for the description."""
    answers: Mapping[str, str] = field(default_factory=_answered)
    """Statuses of success, and what they mean."""
    content_type: str = "application/json"
    """Empty where the status says it all."""
    streams: bool = False
    """Whether the answer comes piece by piece where the body asks for that."""
    stream_type: str = "text/event-stream"
    """Media type of such pieces."""

    @property
    def described_path(self) -> str:
        """The path as OpenAPI writes it: without converters."""
        return _CONVERTER.sub("}", self.path)

    def to_route(self) -> Route:
        return Route(self.path, self.handler, methods=[self.method])
