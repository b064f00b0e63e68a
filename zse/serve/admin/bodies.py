"""Bodies of FastAPI's routes, read as those of the routes that generate: bounded, off the loop.

FastAPI would read any body whole and decode it within the event loop, as many at once as come.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request

from zse.serve.http.bodies import BodyRoom
from zse.serve.http.errors import BadRequestError, ClientGoneError
from zse.serve.http.json_body import SHORT_BYTES, read_mapping, with_body
from zse.serve.http.requests import declared_type, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.responses import Response

    from zse.serve.http.bodies import HeldBody

MAX_FIELDS = 64
"""Of a body; each that nobody knows is an error of its own, made within the event loop."""
MAX_VALUES = 10_000
"""In a body: no route of FastAPI's needs more, and what checks each of them keeps the loop."""


class BoundedRoute(APIRoute):
    """A route that holds room for its body, and decodes it where others are not kept waiting."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            room, tenant = state_of(request).one_of(BodyRoom), request.state.caller.tenant
            with room.hold(tenant) as held:
                read = _Read(request, held)
                await read.decode_json()
                return await handle(read)

        return bounded


class _Read(Request):
    """A request whose body is counted while it is read, and was decoded before it is asked for."""

    def __init__(self, request: Request, held: HeldBody) -> None:
        super().__init__(request.scope, partial(_counted, request, held))
        self._mapping: dict[str, Any] | None = None

    async def decode_json(self) -> None:
        """Read and decode the body, where it is JSON.

        Raises:
            BadRequestError: It is no JSON object, or says more than any route is asked.
            OverloadedError: There is no room for it beside the bodies of others.
            ClientGoneError: The client left before it had sent all of it.
        """
        declared = declared_type(self.headers)
        if not (declared == "application/json" or declared.endswith("+json")):
            return
        try:
            body = await super().body()
        except ClientDisconnect as error:
            raise ClientGoneError from error
        if body:
            self.state.has_long_body = len(body) > SHORT_BYTES
            self._mapping = await with_body(self, _read_small_mapping, body)

    async def json(self) -> Any:
        return await super().json() if self._mapping is None else self._mapping


async def _counted(request: Request, held: HeldBody) -> Any:
    message = await request.receive()
    held.add(len(message.get("body", b"")))
    return message


def _read_small_mapping(body: bytes) -> dict[str, Any]:
    """Parse a body into a mapping of few values.

    Raises:
        BadRequestError: As ``read_mapping``, or there are more.
    """
    mapping = read_mapping(body)
    num_values = 0
    left: list[Any] = [mapping]
    while left:
        each = left.pop()
        num_values += len(each)
        if len(mapping) > MAX_FIELDS or num_values > MAX_VALUES:
            raise BadRequestError(
                f"The body has more than {MAX_FIELDS} fields, or {MAX_VALUES:,} values in them."
            )
        inner = each.values() if type(each) is dict else each
        left += [child for child in inner if type(child) in (dict, list)]
    return mapping
