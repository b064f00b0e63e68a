"""WebSocket connections, bounded: uvicorn's protocol on wsproto, within our limits of connections.

Imported when the first client asks for one: nothing that waits for a first token needs it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from zse.serve.http.connection_limits import LOG

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from starlette.types import ASGIApp

    from zse.serve.http.connection_limits import ConnectionLimits
    from zse.serve.http.server import ServerState

MAX_MESSAGE_BYTES = 1 << 20
HIGH_WATER_BYTES = 64 << 10
MAX_UNSENT_BYTES = 1 << 20
"""What a client has asked for with pings, or the application sent, and it does not read."""


FRAMES_PER_SECOND = 50.0
FRAME_BURST = 512.0
FREE_FRAME_BYTES = 128
"""Frames that are longer cost no more than their bytes do, and are not counted."""


class _FloodError(Exception):
    """A client sends frames, pings or pieces of messages, of next to nothing."""


class WebSocket(WSProtocol):
    """One WebSocket from its handshake to its end.

    Each frame takes the loop some microseconds, be it empty: of those with next to nothing in them
    there are so many a second. How many messages there may be, ``WebSocketGuard`` says.
    """

    def __init__(
        self, limits: ConnectionLimits, *, app: ASGIApp, server_state: ServerState
    ) -> None:
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
        self._limits = limits
        self._num_waiting = 0
        self._taken_at = self.loop.time()
        self._opened_at = self.loop.time()
        self._num_spare = FRAME_BURST
        self._counted_at = self._opened_at
        connection: Any = self.conn
        connection.events = partial(self._counted, connection.events)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._limits.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        now = self.loop.time()
        earned = (now - self._counted_at) * FRAMES_PER_SECOND
        self._num_spare = min(FRAME_BURST, self._num_spare + earned) + len(data) / FREE_FRAME_BYTES
        self._counted_at = now
        try:
            super().data_received(data)
        except _FloodError:
            LOG.warning("a WebSocket's client floods it with frames of a few bytes")
            self.transport.abort()
            return
        if self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            LOG.warning("a WebSocket's client reads nothing of what it asked for")
            self.transport.abort()

    def _counted(self, events: Callable[[], Iterable[object]]) -> Iterator[object]:
        """Yield what came, frame by frame, up to what there may be."""
        for event in events():
            self._num_spare -= 1
            if self._num_spare < 0:
                raise _FloodError
            yield event

    def evict(self) -> None:
        """Close at once."""
        self.transport.abort()

    close_if_idle = evict

    def enforce_deadlines(self, now: float) -> None:
        """End a socket whose client takes nothing, or never ends its handshake."""
        num_waiting = self.transport.get_write_buffer_size()
        if num_waiting == 0 or num_waiting < self._num_waiting:
            self._taken_at = now
        self._num_waiting = num_waiting
        if now - self._taken_at >= self._limits.options.write_timeout:
            LOG.warning("a WebSocket's client took nothing in time")
            self.transport.abort()
        elif not self.handshake_complete:
            self._check_handshake(now)

    def _check_handshake(self, now: float) -> None:
        if now - self._opened_at >= self._limits.options.read_timeout:
            self.transport.abort()
