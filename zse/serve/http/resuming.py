"""The routes of streams that go on while their client is away.

``GET /v1/streams/{id}`` with ``Last-Event-ID`` goes on behind that event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from zse.serve.access.caller import caller_of
from zse.serve.http.errors import BadRequestError
from zse.serve.http.requests import state_of
from zse.serve.http.resumable import ResumableStreams
from zse.serve.http.streaming import EventStream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.http.resumable import Resumable

_MAX_DIGITS = 15


async def resume_stream(request: Request) -> ASGIApp:
    """Handle ``GET /v1/streams/{id}``.

    Raises:
        UnknownIdError: The caller has no such stream, or has it no longer.
        BadRequestError: ``Last-Event-ID`` is no number of an event.
        EventsGoneError: Events behind that one are not kept any more.
    """
    stream, stream_id = _stream_of(request), request.path_params["stream_id"]
    last = request.headers.get("last-event-id", "-1").strip()
    number = int(last) if last.removeprefix("-").isdecimal() and len(last) < _MAX_DIGITS else -2
    if not -1 <= number <= stream.log.last:
        raise BadRequestError(
            f"'Last-Event-ID' is {last[:40]!r}, expected the id of an event of this stream.",
            param="Last-Event-ID",
        )
    headers = {"x-zse-stream-id": stream_id}
    return EventStream(
        stream.events(after=number), terminate=state_of(request).terminate, headers=headers
    )


async def end_stream(request: Request) -> Response:
    """Handle ``DELETE /v1/streams/{id}``: the work stops, and nothing is kept.

    Raises:
        UnknownIdError: The caller has no such stream, or has it no longer.
    """
    _stream_of(request).give_up()
    return Response(status_code=204)


def _stream_of(request: Request) -> Resumable:
    streams = state_of(request).one_of(ResumableStreams)
    return streams.get(caller_of(request.scope).tenant, request.path_params["stream_id"])
