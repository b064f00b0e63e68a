"""WebSocket connections, bounded: uvicorn's protocol on wsproto, within the limits of our door.

Imported when the first client asks for one: nothing that waits for a first token needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from zse.serve.http.door import LOG

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp

    from zse.serve.http.door import Door
    from zse.serve.http.server import ServerState

MAX_MESSAGE_BYTES = 1 << 20
HIGH_WATER_BYTES = 64 << 10
MAX_UNSENT_BYTES = 1 << 20
"""What a client has asked for with pings, or the application sent, and it does not read."""


class WebSocket(WSProtocol):
    """One WebSocket from its handshake to its end."""

    def __init__(self, door: Door, *, app: ASGIApp, server_state: ServerState) -> None:
        config = Config(
            app,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,  # a message of a kilobyte could unpack to a gigabyte
        )
        state: Any = server_state  # uvicorn's has the same fields
        super().__init__(config=config, server_state=state, app_state={})
        self._door = door
        self._num_waiting = 0
        self._taken_at = self.loop.time()
        self._opened_at = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            LOG.warning("a WebSocket's client reads nothing of what it asked for")
            self.transport.abort()

    def turn_away(self) -> None:
        """Close at once."""
        self.transport.abort()

    retire = turn_away

    def check(self, now: float) -> None:
        """End a socket whose client takes nothing, or never ends its handshake."""
        num_waiting = self.transport.get_write_buffer_size()
        if num_waiting == 0 or num_waiting < self._num_waiting:
            self._taken_at = now
        self._num_waiting = num_waiting
        if now - self._taken_at >= self._door.options.write_timeout:
            LOG.warning("a WebSocket's client took nothing in time")
            self.transport.abort()
        elif not self.handshake_complete:
            self._check_handshake(now)

    def _check_handshake(self, now: float) -> None:
        if now - self._opened_at >= self._door.options.read_timeout:
            self.transport.abort()
