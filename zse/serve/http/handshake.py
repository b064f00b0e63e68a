"""TLS handshakes, counted against the limits like any connection, and closed in time.

asyncio would shake hands on its own, before a connection exists: whoever never ends a handshake
would hold a socket, and be counted nowhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zse.serve.http.connection_limits import EXTRA_SECONDS, LOG

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from zse.serve.http.connection_limits import ConnectionLimits
    from zse.serve.http.server import ServerState

END_SECONDS = 2.0
"""For a client to say goodbye, once we have."""


class Handshake(asyncio.Protocol):
    """Holds a connection's place until it is secure, and hands it over then.

    Args:
        connect: Makes what speaks over the secured connection.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        context: ssl.SSLContext,
        server_state: ServerState,
        connect: Callable[[], asyncio.Protocol],
    ) -> None:
        self._limits = limits
        self._context = context
        self._server = server_state
        self._connect = connect
        self._received: list[bytes] = []
        """What came with the end of the handshake, before it was handed over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        has_room = self._limits.add(self)
        self._limits.mark_idle(self)
        seconds = self._limits.options.read_timeout if has_room else EXTRA_SECONDS
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        self._shaking = loop.create_task(self._shake())

    def data_received(self, data: bytes) -> None:
        self._received.append(data)

    def shutdown(self) -> None:
        """Close at once: nothing was asked for."""
        self._transport.abort()

    def evict(self) -> None:
        """Close at once: the place is needed."""
        self._leave()
        self._transport.abort()

    def close_if_idle(self) -> None:
        """Close at once: a handshake that takes so long leads to nothing."""
        self._transport.abort()

    def enforce_deadlines(self, now: float) -> None:
        """Close when the time for the head of a request is up."""
        if now >= self._deadline:
            LOG.info("a TLS handshake did not end in time")
            self._transport.abort()

    async def _shake(self) -> None:
        try:
            secure = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                self._context,
                server_side=True,
                ssl_shutdown_timeout=END_SECONDS,
            )
        except OSError as error:  # TLS's errors are such
            LOG.debug("a TLS handshake failed: %s", error)
            return
        finally:
            self._leave()
        if secure is not None and not secure.is_closing():
            self._hand_over(secure)

    def _hand_over(self, secure: asyncio.Transport) -> None:
        connection = self._connect()
        secure.set_protocol(connection)
        connection.connection_made(secure)
        for data in self._received:
            connection.data_received(data)

    def _leave(self) -> None:
        self._server.connections.discard(self)
        self._limits.remove(self)
