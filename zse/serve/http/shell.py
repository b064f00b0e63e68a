"""The shell around every route, as one plain ASGI callable.

It names the request, refuses foreign hosts and oversized bodies, adds ``x-request-id`` and
``Server-Timing`` to every response, counts it and logs one line. Paths are read from the scope:
``request.url`` is built from the Host header, which the client writes.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from zse.serve.access.caller import ANYBODY
from zse.serve.http.errors import BodyTooLargeError, MisdirectedError, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve.access")

MAX_BODY_BYTES = 32 << 20
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class Shell:
    """Wraps the application.

    Args:
        allowed_hosts: Host names that are answered; None answers all. A server bound to loopback
            takes loopback names only, or a web page could reach it by rebinding its own name.
    """

    def __init__(
        self, app: ASGIApp, *, state: AppState, allowed_hosts: frozenset[str] | None = None
    ) -> None:
        self._app = app
        self._state = state
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["caller"] = ANYBODY
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        call = _Call(self._state, scope, headers.get(b"x-request-id", b""), send)
        scope["state"].update(request_id=call.request_id, arrival=call.arrival)
        refusal = self._refuse(headers)
        try:
            if refusal is not None:
                await error_response(refusal, {"connection": "close"})(scope, receive, call.send)
            else:
                await self._app(scope, _capped(receive), call.send)
        except Exception:
            # Starlette answers and logs a crash, then raises it again for the server to log twice.
            if not call.status:
                raise
        finally:
            call.report()

    def _refuse(self, headers: dict[bytes, bytes]) -> Exception | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self._allowed_hosts is not None:
            match = _HOST.fullmatch(host)
            if match is None or match.group(1).lower() not in self._allowed_hosts:
                return MisdirectedError(
                    f"The host '{host[:100]}' is not served here; use localhost or 127.0.0.1."
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            return _too_large()
        return None


class _Call:
    """One request on its way out."""

    def __init__(self, state: AppState, scope: Scope, request_id: bytes, send: Send) -> None:
        given = request_id.decode("latin-1")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        self._state = state
        self._scope = scope
        self._send = send
        self.status = 0
        """Of the response; 0 until it has begun."""
        self.arrival = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Pass a message on, with our headers on the first."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            timing = self._state.ledger.server_timing(self.request_id)
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode("latin-1")),
                (b"server-timing", timing.encode("latin-1")),
            ]
        await self._send(message)

    def report(self) -> None:
        path = self._scope["path"]
        # Routed requests are few patterns; anything else is one label, or a scan would fill memory.
        endpoint = self._scope.get("endpoint")
        name = getattr(endpoint, "__name__", None) or "other"
        self._state.metrics.count("responses", name, str(self.status))
        is_probe = path.startswith(("/health", "/ping", "/metrics"))
        LOG.log(
            logging.DEBUG if is_probe else logging.INFO,
            "response",
            extra={
                "request_id": self.request_id,
                "method": self._scope["method"],
                "path": path[:200],
                "status": self.status,
                "duration_ms": round((time.perf_counter() - self.arrival) * 1000, 1),
            },
        )


def _capped(receive: Receive) -> Receive:
    """Count the bytes of a body that came without a length."""
    num_bytes = 0

    async def capped() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return capped


def _too_large() -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.")
