"""One request and what is said of it: its id, its headers, its count and its line in the log.

The outermost wrapper: whatever answers, also a refusal by another wrapper, passes through it.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zse.serve.state import AppState
    from zse.serve.telemetry.trace import Place

LOG = logging.getLogger("zse.serve.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_SWITCHING = 101
_MAX_PATH = 200
_SERVER_ERROR = 500


class Reporting:
    """Names each request, adds ``x-request-id`` and ``Server-Timing``, counts it, logs one line.

    What is inside finds in the scope's state ``request_id``, ``arrival`` (on
    ``time.perf_counter``), ``place`` (in a trace), ``client_address`` (who asked, as far as
    trusted proxies tell) and ``response`` (its ``status`` is 0 until it begins), and puts the
    ``room`` there that it takes, and the ``use`` that it begins of a model: no end of a request
    leaves them taken.
    """

    def __init__(self, app: ASGIApp, *, state: AppState) -> None:
        self.app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _Call(self._state, scope, send)
        client = scope.get("client") or ("", 0)
        scope.setdefault("state", {}).update(
            request_id=call.request_id,
            arrival=call.arrival,
            client_address=client[0],
            place=call.place,
            response=call,
            room=None,
            use=None,
        )
        try:
            await self.app(scope, receive, call.send)
        except Exception:
            # Starlette answers and logs a crash, then raises it again for the server to log twice.
            if not call.status:
                raise
        finally:
            call.report()
            if (room := scope["state"]["room"]) is not None:
                room.abandon()
            if (use := scope["state"]["use"]) is not None:
                use.end()


class _Call:
    """One request on its way out."""

    def __init__(self, state: AppState, scope: Scope, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        self.place: Place | None = None
        if state.tracing is not None and not _is_probe(scope["path"]):
            self.place = state.tracing.place_of(headers.get(b"traceparent", b""))
        self.request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        self._state = state
        self._scope = scope
        self._send = send
        self.status = 0
        """Of the response; 0 until it has begun."""
        self.arrival = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Pass a message on, with our headers on the first."""
        if message["type"] in _STARTS:
            self.status = message.get("status", _SWITCHING)
            timing = self._state.ledger.server_timing(self.request_id)
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode("latin-1")),
                (b"server-timing", timing.encode("latin-1")),
            ]
            if self._state.is_leaving:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    def report(self) -> None:
        path = self._scope["path"]
        # Routed requests are few patterns; anything else is one label, or a scan would fill memory.
        endpoint = self._scope.get("endpoint")
        name = getattr(endpoint, "__name__", None) or "other"
        self._state.metrics.count("responses", name, str(self.status))
        now = time.perf_counter()
        facts = {
            "request_id": self.request_id,
            "method": self._scope.get("method", "WEBSOCKET"),
            "path": path[:_MAX_PATH],
            "status": self.status,
            "duration_ms": round((now - self.arrival) * 1000, 1),
        }
        if self.place is not None:
            facts["trace_id"] = self.place.trace_hex
            self._trace(self.place, name, facts, now)
        level = logging.DEBUG if _is_probe(path) else logging.INFO
        LOG.log(level, "response", extra=facts)

    def _trace(self, place: Place, name: str, facts: dict[str, Any], now: float) -> None:
        from zse.serve.telemetry.trace import Span, unix_ns

        tracing = self._state.tracing
        assert tracing is not None
        span = Span(
            name=f"{facts['method']} {name}",
            place=place,
            kind="server",
            start_ns=unix_ns(self.arrival),
            end_ns=unix_ns(now),
            attributes={
                "http.request.method": facts["method"],
                "url.path": facts["path"],
                "http.response.status_code": self.status,
                "zse.request_id": self.request_id,
            },
            error=f"status {self.status}" if self.status >= _SERVER_ERROR else "",
        )
        tracing.add([span])


def _is_probe(path: str) -> bool:
    return path.startswith(("/health", "/ping", "/metrics"))
