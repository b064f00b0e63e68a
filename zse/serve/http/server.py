"""The server around the application: it accepts connections, and waits for them in the end.

``connection_limits`` and ``connection`` say what a connection may do, the application says what its
bytes mean. asyncio does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.serve.http.connection import Connection
from zse.serve.http.connection_limits import ConnectionLimits
from zse.serve.sockets import BACKLOG
from zse.server_options import HTTPOptions

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp

    from zse.serve.http.tls import Certificates

LOG = logging.getLogger("zse.serve")

LOOK_SECONDS = 10.0
"""How often certificates are looked at."""
_WAIT_SECONDS = 0.05
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ServerState:
    """What a server shares with its connections."""

    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each request that is being answered."""
        self.total_requests = 0
        self._date: tuple[int, list[tuple[bytes, bytes]]] = (0, [])

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer has: the date, which no timer has to keep."""
        seconds = int(time.time())
        if seconds != self._date[0]:
            self._date = seconds, [(b"date", http_date(seconds))]
        return self._date[1]


class HTTPServer:
    """Serves sockets until ``should_exit`` is set, which any thread may do.

    Args:
        app: Is called for each request.
        end_seconds: How long it waits in the end for answers that are being made.
        options: Deadlines, and how many connections there may be.
        certificates: For HTTPS; read again when their files change.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        end_seconds: float,
        options: HTTPOptions | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.app = app
        self.server_state = ServerState()
        self.servers: list[asyncio.Server] = []
        self.started = False
        self._limits = ConnectionLimits(options or HTTPOptions())
        self._end_seconds = end_seconds
        self._certificates = certificates
        self._is_asked = False
        self._asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end."""
        return self._is_asked

    @should_exit.setter
    def should_exit(self, is_asked: bool) -> None:
        self._is_asked = is_asked
        if is_asked and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is over
                self._loop.call_soon_threadsafe(self._asked.set)

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on listening sockets until asked to end; close what is left then."""
        loop = self._loop = asyncio.get_running_loop()
        greet = self._greeter()
        for listening in sockets:
            server = await loop.create_server(greet, sock=listening, backlog=BACKLOG)
            self.servers.append(server)
        self.started = True
        looking = asyncio.create_task(self._look_at_certificates())
        try:
            if not self._is_asked:
                await self._asked.wait()
        finally:
            looking.cancel()
        await self._end(sockets)

    @property
    def is_writing(self) -> bool:
        """Whether bytes wait here for a client that has not taken those before them."""
        connections = self.server_state.connections
        return any(isinstance(one, Connection) and one.has_unsent for one in connections)

    def close_idle(self, *, since: float) -> None:
        """Close the connections that have been idle since a moment of the loop's clock."""
        self._limits.close_idle(since=since)

    def _greeter(self) -> Callable[[], asyncio.Protocol]:
        """Return what meets who comes: with certificates, nobody speaks before a handshake."""
        if self._certificates is None:
            return self._connect
        from zse.serve.http.handshake import Handshake

        return partial(
            Handshake,
            self._limits,
            context=self._certificates.context,
            server_state=self.server_state,
            connect=self._connect,
        )

    def _connect(self) -> Connection:
        return Connection(self._limits, app=self.app, server_state=self.server_state)

    async def _look_at_certificates(self) -> None:
        while self._certificates is not None:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self._certificates.refresh)

    async def _end(self, sockets: Sequence[socket.socket]) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets:
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._end_seconds):
                while state.connections or state.tasks:
                    await asyncio.sleep(_WAIT_SECONDS)
        if state.tasks:
            LOG.warning("answers are cut off", extra={"requests": len(state.tasks)})
        for task in state.tasks:
            task.cancel()


def http_date(seconds: float) -> bytes:
    """Return a Unix time as the header ``Date`` has it (RFC 9110, 5.6.7), in no user's language."""
    now = time.gmtime(seconds)
    day, month = _DAYS[now.tm_wday], _MONTHS[now.tm_mon - 1]
    clock = time.strftime("%H:%M:%S", now)
    return f"{day}, {now.tm_mday:02d} {month} {now.tm_year} {clock} GMT".encode()


def warm() -> None:
    """Import what the first WebSocket needs, and spare the collector what will stay for ever.

    A collection that walks over all that was imported takes longer than a token.
    """
    import zse.serve.http.websocket  # noqa: F401 - it is there when it is asked for

    gc.freeze()
