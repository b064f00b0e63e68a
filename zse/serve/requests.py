"""What every generating handler does first: read the body, name the answer, list the ignored."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from zse.serve.errors import MediaTypeError
from zse.serve.protocol import read_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """
    declared = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if declared.lower() != "application/json" and not declared.lower().endswith("+json"):
        raise MediaTypeError(
            f"The content type is '{declared[:100]}', expected 'application/json'."
        )
    return read_mapping(await request.body())


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
