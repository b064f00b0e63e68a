"""What every generating handler does first and last: read the body, and answer."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from zse.serve.http.bodies import BodyRoom
from zse.serve.http.errors import BadRequestError, ClientGoneError, MediaTypeError
from zse.serve.http.json_body import read_json
from zse.serve.http.streaming import FRAMES, ChunkWriter, EventStream, race, with_usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.http.streaming import FrameSink
    from zse.serve.openai.protocol import GenerationFields
    from zse.serve.state import AppState, LoadedModel

RESUMABLE_HEADER = "x-zse-resumable"
_MAX_IGNORED = 16
_FORM = "application/x-www-form-urlencoded"
_UNDECLARED = frozenset({"", _FORM})
"""What programs send that were not told a type: the latter is what ``curl -d`` says of anything."""


def state_of(request: Request) -> AppState:
    state: AppState = request.app.state.zse
    return state


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body, where there is a model to answer it.

    Raises:
        LoadingError: The model is not there yet, or no longer.
        MediaTypeError: The body is not declared as JSON, and is none or comes from a browser.
        BadRequestError: It is no JSON object.
        OverloadedError: Other long bodies are being read.
        ClientGoneError: The client left before it had sent all of it.
    """
    length = request.headers.get("content-length", "")
    await state_of(request).hold(int(length) if length.isdecimal() else 0)
    state_of(request).require_any()
    declared = declared_type(request.headers)
    is_declared = declared == "application/json" or declared.endswith("+json")
    if not (is_declared or is_undeclared(request.headers)):
        raise _undeclared(declared)
    try:
        return await read_json(request, state_of(request).one_of(BodyRoom))
    except ClientDisconnect as error:
        raise ClientGoneError from error
    except BadRequestError as error:
        if declared == _FORM:
            raise _undeclared(declared, error.message) from error
        raise


def is_undeclared(headers: Headers) -> bool:
    """Whether a program that was not told a type sent a body, and no web page did.

    Browsers say that they sent it, and no page can keep them from it. Across sites they send forms
    and bodies without a type, unlike JSON, without asking the server.
    """
    is_of_browser = "origin" in headers or "sec-fetch-site" in headers
    return declared_type(headers) in _UNDECLARED and not is_of_browser


def declared_type(headers: Headers) -> str:
    """Return the media type of a body as its sender calls it, in lower case."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _undeclared(declared: str, problem: str = "") -> MediaTypeError:
    """Return the refusal of a type; of what is tried as JSON all the same, with what is wrong."""
    told = f"Read as JSON, the body is wrong: {problem.rstrip('.')}. " if problem else ""
    return MediaTypeError(
        f"{told}The content type is '{declared[:100]}', expected 'application/json'. "
        "Send JSON with the header 'content-type: application/json'."
    )


async def answer(
    request: Request,
    body: GenerationFields,
    head: Mapping[str, Any],
    *,
    ignored: Iterable[str],
    frames: Callable[[ChunkWriter, FrameSink | None], AsyncGenerator[bytes, None]],
    collect: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
    usage: Callable[[], Mapping[str, Any]],
) -> ASGIApp:
    """Answer with events where a stream was asked for, else in one piece as soon as it is made.

    ``head`` begins the answer and every chunk of it; ``collect`` returns what follows, ``frames``
    yields the events, or lets them go to a sink itself where there is one; ``usage`` says what has
    been used so far. A header lists the fields that were ignored.

    Raises:
        ClientGoneError: The client left; the work was cancelled.
        ShuttingDownError: Draining ran out of time; likewise.
    """
    headers = ignored_header(ignored)
    if body.stream:
        options = body.stream_options
        counts_always = bool(options and options.continuous_usage_stats)
        includes_usage = counts_always or bool(options and options.include_usage)
        writer = ChunkWriter(head, include_usage=includes_usage)
        events = frames(writer, None if counts_always else sink_of(request))
        if counts_always:
            events = with_usage(events, usage)
        return event_stream(request, head["id"], events, headers=headers)
    rest = await race(collect(), request.receive, state_of(request).terminate)
    return json_response({**head, **rest}, headers)


def sink_of(request: Request) -> FrameSink | None:
    """Return where events may go past their stream; None where all of them are kept."""
    if request.headers.get(RESUMABLE_HEADER) == "1":
        return None
    sink: FrameSink | None = request.scope.get("extensions", {}).get(FRAMES)
    return sink


def event_stream(
    request: Request,
    stream_id: str,
    frames: AsyncGenerator[bytes, None],
    *,
    headers: Mapping[str, str],
    failure: Callable[[Exception], bytes] | None = None,
) -> EventStream:
    """Return the answer that sends events; where the request asks for it, one that can be resumed.

    ``failure`` is as in ``EventStream``.

    Raises:
        OverloadedError: No more streams can be resumed than there are.
    """
    if request.headers.get(RESUMABLE_HEADER) == "1":
        from zse.serve.http.resumable import ResumableStreams

        streams = state_of(request).one_of(ResumableStreams)
        frames = streams.add(request.scope, stream_id, frames, failure=failure).events()
        headers = {**headers, "x-zse-stream-id": stream_id}
    terminate = state_of(request).terminate
    return EventStream(frames, terminate=terminate, headers=headers, failure=failure)


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


def new_id(prefix: str) -> str:
    """Return a fresh identifier such as ``chatcmpl-…``."""
    return f"{prefix}-{uuid.uuid4().hex}"


def answer_head(kind: str, prefix: str, model: LoadedModel) -> dict[str, Any]:
    """Return the fields that every answer and every chunk of it begins with."""
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": model.fingerprint,
    }


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """Return the header that lists fields which had no effect; empty when there were none."""
    clean = [re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", name)[:64] for name in names]
    return {"x-zse-ignored": ", ".join(clean[:_MAX_IGNORED])} if clean else {}
