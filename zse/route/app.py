"""The router as an application: what it answers itself, and what it hands on.

/health /health/ready   200 while a replica takes requests, or would be woken
/health/live /ping      200 while the process lives
/metrics                counts of the router
/route/replicas         who they are and how they do; POST there takes one out, or back in
everything else         a replica
"""

from __future__ import annotations

import hmac
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import OverloadedError, RefusedError, ShuttingDownError, UsageError, ZSEError
from zse.route.counts import CONTENT_TYPE
from zse.route.fleet import NoReplicaError
from zse.route.headers import request_id_of
from zse.route.prompt import NO_PROMPT, read_prompt
from zse.route.relay import Relay, read_body, refuse
from zse.route.upstream import UpstreamError
from zse.serve.http.errors import ClientGoneError
from zse.serve.http.streaming import race
from zse.serve.sockets import is_loopback

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Receive, Scope, Send

    from zse.route.fleet import Fleet

LOG = logging.getLogger("zse.route")
ACCESS_LOG = logging.getLogger("zse.route.access")
_READY = frozenset({"/health", "/health/ready"})
_LIVE = frozenset({"/health/live", "/ping"})
_OWN = frozenset({"/metrics", "/route/replicas"})
_CLIENT_CLOSED = 499
_MAX_PATH = 200


class DeniedError(RefusedError):
    """What the router tells of itself is not for this caller."""

    http_status = 403
    error_code = "permission_denied"


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    """What an operator has done to a replica."""

    replica: str
    drained: bool


class RouteApp:
    """An ASGI application.

    Args:
        terminate: Set when what is still being answered must end.
    """

    def __init__(self, fleet: Fleet, *, terminate: asyncio.Event, max_body_bytes: int) -> None:
        self.fleet = fleet
        self.is_leaving = False
        """Whether balancers are to send no more requests."""
        self._terminate = terminate
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})  # try again elsewhere
            return
        scope["state"]["request_id"] = request_id_of(scope["headers"])
        path = scope["path"]
        try:
            if path in _READY or path in _LIVE:
                self._check_health(path)
                await _answer(send, 200, b'{"status":"ok"}', b"application/json")
            elif path in _OWN:
                await self._tell(scope, receive, send)
            else:
                await self._route(scope, receive, send)
        except ClientGoneError:
            self.fleet.counts.cancelled += 1
        except ZSEError as error:
            self.fleet.counts.answered(await refuse(error, scope, receive, send))

    def _check_health(self, path: str) -> None:
        if path in _LIVE:
            return
        if self.is_leaving:
            raise ShuttingDownError("The router is shutting down; send requests to another.")
        if not self.fleet.is_ready:
            raise NoReplicaError(f"None of {len(self.fleet.members)} replicas takes requests.")

    # --- what is handed on ------------------------------------------------------------------------

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts, options = self.fleet.counts, self.fleet.options
        if counts.in_flight >= options.max_in_flight:
            raise OverloadedError(f"{counts.in_flight} requests are in flight already.")
        counts.in_flight += 1
        num_held, begun_at = 0, time.monotonic()
        relay: Relay | None = None
        try:
            body = await read_body(receive, self.fleet, max_bytes=self._max_body_bytes)
            num_held = len(body)
            prompt = read_prompt(body, dict(scope["headers"])) if num_held else NO_PROMPT
            relay = Relay(self.fleet, scope, send, body=body, prompt=prompt)
            await race(relay.run(), receive, self._terminate)
            counts.answered(relay.status)
        except (UpstreamError, ShuttingDownError) as error:
            if relay is None or not relay.has_begun:
                raise
            # What was begun cannot be ended as it was begun: our return cuts the connection.
            LOG.warning("an answer was broken off: %s", error, extra={"replica": relay.replica})
        finally:
            counts.in_flight -= 1
            counts.held_bytes -= num_held
            if relay is not None:
                _log(scope, relay, time.monotonic() - begun_at)

    # --- what is told -----------------------------------------------------------------------------

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._admit(scope)
        if scope["path"] == "/metrics":
            text = self.fleet.counts.render(self.fleet)
            await _answer(send, 200, text, CONTENT_TYPE.encode())
            return
        if scope["method"] == "POST":
            self._change(await read_body(receive, self.fleet, max_bytes=4096))
        await _answer(send, 200, self._replicas(), b"application/json")

    def _admit(self, scope: Scope) -> None:
        """Refuse who may not see it.

        Raises:
            DeniedError: It asks without the key, or from another machine where there is none.
        """
        headers = dict(scope["headers"])
        key = self.fleet.options.route_key
        if key:
            given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            if hmac.compare_digest(given, key.encode()):
                return
            raise DeniedError("This needs the router's key.", hint="It is ZSE_ROUTE_KEY.")
        client = scope.get("client") or ("", 0)
        is_passed_on = b"x-forwarded-for" in headers or b"forwarded" in headers
        if not is_loopback(client[0]) or is_passed_on:
            raise DeniedError("This is told on the router's own machine, or with ZSE_ROUTE_KEY.")

    def _change(self, body: bytes) -> None:
        self.fleet.counts.held_bytes -= len(body)
        try:
            change = msgspec.json.decode(body, type=_Change)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"The body is no change: {error}.",
                hint='For example {"replica": "http://10.0.0.11:8000", "drained": true}.',
            ) from None
        member = self.fleet.members.get(change.replica)
        if member is None:
            raise UsageError(f"There is no replica {change.replica[:100]!r}.", param="replica")
        member.replica.is_drained = change.drained
        LOG.info("drained" if change.drained else "taken back", extra={"replica": change.replica})
        self.fleet.news()

    def _replicas(self) -> bytes:
        now = time.monotonic()
        told: list[dict[str, Any]] = [
            {
                "replica": each.name,
                "state": str(each.state),
                "drained": each.is_drained,
                "asleep": each.is_asleep,
                "resting_seconds": round(max(0.0, each.rests_until - now), 1),
                "in_flight": each.in_flight,
                "running": each.load.running,
                "waiting": each.load.waiting,
                "kv_usage": round(each.load.kv_usage, 4),
                "failures": each.num_failures,
            }
            for each in self.fleet.replicas
        ]
        return msgspec.json.encode({"replicas": told, "waiting": self.fleet.num_waiting})


async def _answer(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _log(scope: Scope, relay: Relay, seconds: float) -> None:
    ACCESS_LOG.info(
        "routed",
        extra={
            "request_id": scope["state"]["request_id"],
            "method": scope["method"],
            "path": scope["path"][:_MAX_PATH],
            "status": relay.status or _CLIENT_CLOSED,
            "replica": relay.replica,
            "tries": relay.num_tries,
            "ms": round(seconds * 1000, 1),
        },
    )
