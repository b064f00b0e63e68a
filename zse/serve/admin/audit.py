"""/api/audit: who asked what, for admins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from zse.errors import StoreError
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import Shape
from zse.serve.audit.entry import AuditEntry, moment_of
from zse.serve.audit.log import NUM_REMEMBERED, AuditLog
from zse.serve.audit.query import Wanted, newest, summarize_files
from zse.serve.http.requests import state_of

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/audit",
    tags=["audit"],
    dependencies=[Depends(Guard("admin"))],
)
MAX_HOURS = 24 * 366
MAX_ENTRIES = 10_000
Hours = Annotated[float, Query(gt=0, le=MAX_HOURS, description="How far back, in hours.")]


class Latency(Shape):
    """Of some requests, in milliseconds."""

    mean: float
    p50: float
    p95: float


class AuditSummary(Shape):
    """Sums of the last hours."""

    hours: float
    total_requests: int
    total_tokens: int
    errors: int
    """Answers with a status of 400 and above."""
    rate_limited: int
    """Answers with the status 429."""
    latency_ms: Latency
    by_status: dict[str, int]
    by_key: dict[str, int]
    """The keys that asked most; ``-`` where none was asked for."""
    by_path: dict[str, int]
    by_model: dict[str, int]


class AuditLine(Shape):
    """One request that has ended."""

    request_id: str
    timestamp: str
    """When it came: ISO 8601, UTC."""
    method: str
    path: str
    status_code: int
    latency_ms: float
    api_key_name: str | None
    client_ip: str | None
    user_agent: str | None
    model_id: str | None
    total_tokens: int
    body: str | None = None
    """The beginning of what was sent, where bodies are kept."""


class AuditLines(Shape):
    total: int
    """Entries in this answer."""
    entries: list[AuditLine]
    """The newest first."""


class AuditStats(Shape):
    """The audit log itself."""

    enabled: bool
    with_content: bool
    folder: str | None
    """None where it is in memory only."""
    file_bytes: int
    """Of the file that is being written."""
    packed_files: int
    packed_bytes: int
    remembered: int
    """Entries in memory, 1,000 at most."""
    added: int
    """Since the start of the server."""
    lost: int
    """Of these, those that could not be written."""


class Cleared(Shape):
    cleared: bool
    all: bool


@router.get("/summary", summary="Sums of what was asked.")
async def summary(request: Request, hours: Hours = 24.0) -> AuditSummary:
    log = _log(request)
    since = moment_of(datetime.now(UTC) - timedelta(hours=hours))
    sums = await asyncio.to_thread(summarize_files, log, Wanted(since=since))
    return AuditSummary(hours=hours, **sums)


@router.get("/recent", summary="The last requests, from memory.")
async def recent(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=NUM_REMEMBERED, description="Most entries.")] = 100,
) -> AuditLines:
    return _lines(_log(request).recent(limit))


@router.get("/query", summary="Requests that are looked for.")
async def query(
    request: Request,
    since: Annotated[datetime | None, Query(description="The earliest time.")] = None,
    until: Annotated[datetime | None, Query(description="The first time that is too late.")] = None,
    api_key: Annotated[str, Query(max_length=64, description="Name of the key.")] = "",
    path: Annotated[str, Query(max_length=200, description="How the path begins.")] = "",
    status: Annotated[
        str, Query(pattern=r"^([0-9]{1,3}|[1-5]xx)?$", description="429, or 5xx.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES, description="Most entries.")] = 100,
) -> AuditLines:
    wanted = Wanted(
        since=moment_of(since) if since else "",
        until=moment_of(until) if until else "",
        key=api_key,
        path=path,
        status=status,
    )
    return _lines(await asyncio.to_thread(newest, _log(request), wanted, limit))


@router.get("/stats", summary="The audit log itself.")
async def stats(request: Request) -> AuditStats:
    log, options = _log(request), state_of(request).options.audit
    size = await asyncio.to_thread(log.files.size) if log.files is not None else None
    return AuditStats(
        enabled=options.audit,
        with_content=options.audit_content,
        folder=str(log.files.folder) if log.files is not None else None,
        file_bytes=size.file_bytes if size else 0,
        packed_files=size.num_packed if size else 0,
        packed_bytes=size.packed_bytes if size else 0,
        remembered=len(log.recent()),
        added=log.num_added,
        lost=log.num_lost,
    )


@router.delete("/clear", summary="Forget the current file, or everything.")
async def clear(
    request: Request,
    all: Annotated[bool, Query(description="What is packed away, too.")] = False,  # noqa: A002
) -> Cleared:
    try:
        await asyncio.to_thread(partial(_log(request).clear, packed_too=all))
    except OSError as error:
        raise StoreError(f"the audit log cannot be cleared: {error.strerror}") from error
    return Cleared(cleared=True, all=all)


def _log(request: Request) -> AuditLog:
    return state_of(request).audit


def _lines(entries: list[AuditEntry]) -> AuditLines:
    lines = [AuditLine(**msgspec.to_builtins(entry)) for entry in entries]
    return AuditLines(total=len(lines), entries=lines)
