"""What every generating handler does first: read the body, name the answer, list the ignored."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from zse.serve.errors import ClientGoneError, MediaTypeError
from zse.serve.protocol import read_mapping
from zse.serve.streaming import race

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from starlette.requests import Request

    from zse.serve.state import AppState, LoadedModel

_MAX_IGNORED = 16


def state_of(request: Request) -> AppState:
    """Return the server's state."""
    state: AppState = request.app.state.zse
    return state


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body.

    Raises:
        MediaTypeError: The body is declared as something else. Browsers send forms and plain text
            across sites without asking, JSON never.
        BadRequestError: It is no JSON object.
        ClientGoneError: The client left before it had sent all of it.
    """
    declared = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if declared.lower() != "application/json" and not declared.lower().endswith("+json"):
        raise MediaTypeError(
            f"The content type is '{declared[:100]}', expected 'application/json'."
        )
    try:
        return read_mapping(await request.body())
    except ClientDisconnect as error:
        raise ClientGoneError from error


async def whole_answer(
    request: Request, work: Coroutine[Any, Any, dict[str, Any]], headers: Mapping[str, str]
) -> Response:
    """Return an answer in one piece, as soon as ``work`` has made it.

    Raises:
        ClientGoneError: The client left; the work was cancelled.
        ShuttingDownError: Draining ran out of time; likewise.
    """
    answer = await race(work, request.receive, state_of(request).terminate)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=headers)


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
