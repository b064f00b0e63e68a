"""Auditing around every route: each request leaves one entry, however it ends.

It stands inside what names the request and outside of everything that may refuse it. Probes leave
none: they come every second, from machines.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from starlette._utils import get_route_path

from zse.serve.access.account import Account
from zse.serve.access.rules import ASSETS, MEASURES, OPEN_PATHS
from zse.serve.audit.entry import AuditEntry, moment_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zse.serve.audit.log import AuditLog

MAX_BODY_BYTES = 64 << 10
"""Kept of a body, where bodies are kept."""
_MAX_PATH = 200
_MAX_AGENT = 256
_MAX_TOOLS = 64
"""Calls that an entry names."""
_FIRST_ERROR = 400


class Auditing:
    """Adds an entry for each request that was named and whose ``response`` has a status.

    Args:
        log: Takes it.
        with_content: Whether it holds the beginning of the body.
    """

    def __init__(self, app: ASGIApp, *, log: AuditLog, with_content: bool = False) -> None:
        self.app = app
        self._log = log
        self._with_content = with_content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _Call(scope)
        if self._with_content and scope["type"] == "http":
            receive = call.copying(receive)
        try:
            await self.app(scope, receive, send)
        finally:
            status: int = scope["state"]["response"].status
            if not _is_probe(get_route_path(scope), status):
                # A refusal by what stands outside of the gate has no account.
                account: Account = scope["state"].get("account") or Account()
                account.close(lambda: self._log.add(call.entry(account, status)))


def _is_probe(path: str, status: int) -> bool:
    """Whether a machine asked as it does every second, or a page for a part of itself."""
    if status < _FIRST_ERROR and (path in MEASURES or path.startswith(ASSETS)):
        return True
    return path in OPEN_PATHS


class _Call:
    """One request; its answer passes by untouched, token by token."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._came_at = time.time()
        self._body: bytearray | None = None

    def copying(self, receive: Receive) -> Receive:
        """Keep the beginning of the body beside handing it on."""
        kept = self._body = bytearray()

        async def copying() -> Message:
            message = await receive()
            room = MAX_BODY_BYTES - len(kept)
            if room > 0:
                kept.extend(message.get("body", b"")[:room])
            return message

        return copying

    def entry(self, account: Account, status: int) -> AuditEntry:
        scope = self._scope
        headers = dict(scope["headers"])
        agent = headers.get(b"user-agent", b"").decode("latin-1")[:_MAX_AGENT]
        client = scope.get("client")
        return AuditEntry(
            request_id=scope["state"]["request_id"],
            timestamp=moment_of(datetime.fromtimestamp(self._came_at, UTC)),
            method=scope.get("method", "WEBSOCKET"),
            path=scope["path"][:_MAX_PATH],
            status_code=status,
            latency_ms=round((time.perf_counter() - scope["state"]["arrival"]) * 1000, 1),
            api_key_name=account.caller.name or None,
            client_ip=client[0] if client else None,
            user_agent=agent or None,
            model_id=account.model or None,
            total_tokens=account.total_tokens,
            tools=", ".join(account.tools[:_MAX_TOOLS]) or msgspec.UNSET,
            body=msgspec.UNSET if self._body is None else self._body.decode(errors="replace"),
        )
