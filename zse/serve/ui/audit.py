"""The page of requests: who asked what, as the audit log says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from zse.serve.access.rules import PAGES
from zse.serve.audit.entry import moment_of
from zse.serve.audit.query import Wanted, newest
from zse.serve.http.requests import state_of
from zse.serve.ui.pages import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

NUM_SHOWN = 200
_HOURS = {"1": 1, "24": 24, "168": 168}
_MAX_FIELD = 200
_OF_PAGES = (*sorted(PAGES), "/ui/", "/ws/stats", "/api/analytics", "/openapi.json")
"""What a browser asks for as pages are looked at, the documentation and charts among it."""


async def show_requests(request: Request) -> Response:
    """Answer ``GET /requests``."""
    return render(request, "requests.html", page="requests", **await _facts(request))


async def show_part(request: Request) -> Response:
    """Answer ``GET /ui/requests``: the table for what is looked for."""
    return render(request, "parts/requests.html", **await _facts(request))


async def _facts(request: Request) -> dict[str, Any]:
    asked = {name: value[:_MAX_FIELD] for name, value in request.query_params.items()}
    hours = _HOURS.get(asked.get("hours", ""), 24)
    wanted = Wanted(
        since=moment_of(datetime.now(UTC) - timedelta(hours=hours)),
        key=asked.get("key", ""),
        path=asked.get("path", ""),
        status=asked.get("status", ""),
        leaves_out=() if "pages" in asked else _OF_PAGES,
    )
    log = state_of(request).audit
    entries = await asyncio.to_thread(newest, log, wanted, NUM_SHOWN)
    rows = [msgspec.to_builtins(entry) for entry in entries]
    return {
        "entries": rows,
        "num_shown": NUM_SHOWN,
        "is_kept": state_of(request).options.audit.audit,
    }
