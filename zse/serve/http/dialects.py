"""How the protocols that are served say what went wrong: in OpenAI's, Anthropic's, Ollama's words.

The route decides, so that a refusal by any wrapper reaches a client in the form it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from zse.records import record
from zse.serve.access.rules import OLLAMA_PATHS

if TYPE_CHECKING:
    from collections.abc import Callable

ANTHROPIC_PATHS = ("/v1/messages",)
_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_LIMITED = frozenset({"requests", "tokens"})
"""Types of errors that say which limit of a key was met."""


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What is inside ``error``; all four keys are always written."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail
    detail: str | msgspec.UnsetType = msgspec.UNSET
    """The message again where a key's limit was met, as servers made with FastAPI have it."""


class AnthropicDetail(msgspec.Struct, kw_only=True):
    """What is inside Anthropic's ``error``."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True, tag_field="type", tag="error"):
    """The body of every answer under ``/v1/messages`` that is not 2xx."""

    error: AnthropicDetail
    request_id: str | None


class OllamaError(msgspec.Struct, kw_only=True):
    """The body of every answer of Ollama's routes that is not 2xx."""

    error: str


@record
class Dialect:
    """What the routes of one protocol say beside their answers."""

    error_body: type[msgspec.Struct]
    """What every answer that is not 2xx holds."""
    make_error: Callable[[int, ErrorDetail, str], bytes]
    """Makes that body for a status, what happened and the id of the request."""
    error_event: bytes
    """What begins the event that ends a stream in an error."""
    request_id_header: str | None
    """A header for the id of the request, besides ``x-request-id``."""
    alive: bytes
    """What is sent into a stream that has been silent for long."""
    event_end: bytes = b"\n\n"
    """What ends that event."""


def _openai_error(status: int, detail: ErrorDetail, request_id: str) -> bytes:  # noqa: ARG001
    again = detail.message if detail.type in _LIMITED else msgspec.UNSET
    return msgspec.json.encode(ErrorBody(error=detail, detail=again))


def _anthropic_error(status: int, detail: ErrorDetail, request_id: str) -> bytes:
    fallback = "invalid_request_error" if status < 500 else "api_error"
    kind = _ANTHROPIC_KINDS.get(status, fallback)
    error = AnthropicDetail(type=kind, message=detail.message)
    return msgspec.json.encode(AnthropicError(error=error, request_id=request_id or None))


def _ollama_error(status: int, detail: ErrorDetail, request_id: str) -> bytes:  # noqa: ARG001
    return msgspec.json.encode(OllamaError(error=detail.message))


OPENAI = Dialect(
    error_body=ErrorBody,
    make_error=_openai_error,
    error_event=b"data: ",
    request_id_header=None,
    alive=b": keep-alive\n\n",
)
ANTHROPIC = Dialect(
    error_body=AnthropicError,
    make_error=_anthropic_error,
    error_event=b"event: error\ndata: ",
    request_id_header="request-id",
    alive=b'event: ping\ndata: {"type":"ping"}\n\n',
)
OLLAMA = Dialect(
    error_body=OllamaError,
    make_error=_ollama_error,
    error_event=b"",
    request_id_header=None,
    # A piece of no text, of either route: clients read each line.
    alive=b'{"message":{"role":"assistant","content":""},"response":"","done":false}\n',
    event_end=b"\n",
)


def dialect_of(path: str) -> Dialect:
    """Return what the routes at a path speak."""
    if path in OLLAMA_PATHS:
        return OLLAMA
    return ANTHROPIC if path.startswith(ANTHROPIC_PATHS) else OPENAI
