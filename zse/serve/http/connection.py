"""One connection: bytes to requests, one after the other, each within its time.

A stream that nobody reads, a head that never ends and a body in slow drips end in time, and what a
tick of the loop writes leaves in one piece.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.serve.http.connection_limits import (
    EXTRA_SECONDS,
    LOG,
    ReadTimeoutError,
    TooManyConnectionsError,
)
from zse.serve.http.connection_output import HIGH_WATER_BYTES, ConnectionOutput
from zse.serve.http.exchange import Exchange, refusal
from zse.serve.http.framing import framing_of_request
from zse.serve.http.head import (
    END,
    MAX_HEAD_BYTES,
    HeadTooLargeError,
    MalformedRequestError,
    read_head,
)
from zse.serve.http.socket_state import address_of, bound_unsent, has_unread

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from zse.serve.http.connection_limits import ConnectionLimits
    from zse.serve.http.head import Head
    from zse.serve.http.server import ServerState

MIN_BYTES_PER_SECOND = 128 << 10
"""What a long body must come with on average, once its first seconds are over."""
LINGER_SECONDS = 2.0
"""For a client to read its refusal while it still sends: to close at once would destroy both."""
PROBES = frozenset({"/health", "/health/live", "/health/ready", "/ping"})
_FIRST_PRINTABLE = 0x21


class Connection(ConnectionOutput, asyncio.Protocol):
    """Reads requests and runs the application for each."""

    def __init__(
        self, limits: ConnectionLimits, *, app: ASGIApp, server_state: ServerState
    ) -> None:
        super().__init__(asyncio.get_running_loop())
        self._limits = limits
        self._app = app
        self._server = server_state
        self._is_extra = False
        self._is_last = False
        """Whether the connection closes behind the answer that is being made."""
        self._buffer = bytearray()
        self._num_searched = 0
        self._exchange: Exchange | None = None
        self._is_leaving = False
        self._is_paused = False
        self._deadline = inf
        self._seconds_left = 0.0
        """Until the deadline, when reading was paused."""

    # --- called by the loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        bound_unsent(transport, HIGH_WATER_BYTES, self._limits.options.write_timeout)
        is_secure = transport.get_extra_info("sslcontext") is not None
        self._addresses = {
            "client": address_of(transport.get_extra_info("peername")),
            "server": address_of(transport.get_extra_info("sockname")),
            "scheme": "https" if is_secure else "http",
        }
        self._is_extra = not self._limits.add(self)
        self._limits.mark_idle(self)
        seconds = EXTRA_SECONDS if self._is_extra else self._limits.options.read_timeout
        self._deadline = self._loop.time() + seconds

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.take_back()  # before the socket is closed, and its number another's
        self._server.connections.discard(self)
        self._limits.remove(self)
        self._is_leaving = True
        if self._exchange is not None:
            self._exchange.lose_client()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_leaving:
            return  # nobody reads it any more
        self._buffer += data
        try:
            self._advance()
        except ZSEError as error:
            self._refuse(error)

    # --- called by the server and by the limits ---------------------------------------------------

    def shutdown(self) -> None:
        """Close when the answer that is being made is out; at once when there is none."""
        self._is_last = True
        if self._exchange is None:
            self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close a connection between requests.

        A request that lies in the kernel, where the loop has not read it yet, is answered first.
        Whoever sends later knows better: our end follows this look within microseconds, and not, as
        when the transport closes, a turn of the loop later.
        """
        self._flush()
        if not self._transport.is_closing():
            if has_unread(self._transport):
                return
            if self._transport.can_write_eof():
                self._transport.write_eof()
        self._leave(lingers=False)

    def evict(self) -> None:
        """Close at once: nothing has begun."""
        self._limits.remove(self)
        self._is_leaving = True
        self._transport.abort()

    def enforce_deadlines(self, now: float) -> None:
        """End what takes longer than it may."""
        if self.seconds_untaken(now) >= self._limits.options.write_timeout:
            LOG.warning("a client took nothing of its answer in time")
            self._transport.abort()
            return
        if now >= self._deadline:
            self._end_reading()

    # --- requests -------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Make requests and pieces of bodies of what has come."""
        while self._buffer and not self._is_leaving:
            exchange = self._exchange
            if exchange is None:
                if not self._begin():
                    return
            elif exchange.framing.is_done:
                self._pause_reading()  # the next request waits for its turn
                return
            elif not self._read_body(exchange):
                return

    def _begin(self) -> bool:
        """Begin with a request; return whether its head is whole."""
        if not self._num_searched:
            if self._buffer.startswith(b"\r\n"):  # which some clients send behind a body
                del self._buffer[:2]
                if not self._buffer:
                    return False  # no request has begun: the connection rests, its clock runs on
            self._limits.mark_busy(self)
            if not self._is_extra:
                self._deadline = self._loop.time() + self._limits.options.read_timeout
        end = self._buffer.find(END, max(0, self._num_searched - len(END)))
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise HeadTooLargeError(f"The head is larger than {MAX_HEAD_BYTES >> 10} KiB.")
        if end < 0:
            self._refuse_early()
            self._num_searched = len(self._buffer)
            return False
        data = bytes(self._buffer[: end + len(END)])
        head = read_head(data)
        del self._buffer[: len(data)]
        self._num_searched = 0
        if self._is_extra and head.path not in PROBES:
            raise TooManyConnectionsError(
                f"All {self._limits.max_connections} connections of this server are in use."
            )
        if head.opens_websocket:
            self._become_websocket(data)
        else:
            self._run(head)
        return True

    def _refuse_early(self) -> None:
        """Refuse what will never be a head, before it ends, which it may not."""
        new = self._buffer[max(0, self._num_searched - 1) :]
        if self._buffer and self._buffer[0] < _FIRST_PRINTABLE:
            raise MalformedRequestError("this is no HTTP; TLS is spoken only with --ssl-certfile")
        if new.count(b"\n") != new.count(b"\r\n") + new.startswith(b"\n"):
            raise MalformedRequestError("a line of the head does not end in CR LF")

    def _run(self, head: Head) -> None:
        framing = framing_of_request(head.length)
        is_short = framing.is_done
        self._deadline = inf if is_short else self._loop.time() + self._limits.options.read_timeout
        raw_path, _, query = head.target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.http_version,
            **self._addresses,
            "method": head.method,
            "root_path": "",
            "path": head.path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": {},
        }
        keeps_alive = head.keeps_alive and not self._is_last and not self._is_extra
        exchange = Exchange(self, head, scope, framing=framing, keeps_alive=keeps_alive)
        exchange.default_headers = self._server.default_headers
        self._exchange = exchange
        task = self._loop.create_task(exchange.run(self._app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _read_body(self, exchange: Exchange) -> bool:
        """Hand on what is there of the body; return whether there was any."""
        num_before = len(self._buffer)
        exchange.add(exchange.framing.take(self._buffer))
        num_taken = num_before - len(self._buffer)
        self._deadline += num_taken / MIN_BYTES_PER_SECOND
        if exchange.framing.is_done:
            self._deadline = inf
        elif exchange.num_held > HIGH_WATER_BYTES:
            self._pause_reading()
        return num_taken > 0

    def end_exchange(self, exchange: Exchange) -> None:
        """Go on to the next request, or close."""
        self._exchange = None
        self._server.total_requests += 1
        if self._is_last or not exchange.keeps_alive or not exchange.framing.is_done:
            self._leave(lingers=bool(self._buffer) or not exchange.framing.is_done)
            return
        self._deadline = self._loop.time() + self._limits.options.keep_alive_timeout
        self._limits.mark_idle(self)
        self.resume_reading()
        if self._buffer:
            self.data_received(b"")

    def _become_websocket(self, data: bytes) -> None:
        from zse.serve.http.websocket import WebSocket

        protocol = WebSocket(self._limits, app=self._app, server_state=self._server)
        self._server.connections.discard(self)
        self._limits.remove(self)
        self._is_leaving = True
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data + bytes(self._buffer))

    # --- reading --------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
            self._seconds_left = self._deadline - self._loop.time()
            self._deadline = inf

    def resume_reading(self) -> None:
        """Go on reading where what has come was taken; the clock goes on, too."""
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
            self._deadline = min(self._deadline, self._loop.time() + self._seconds_left)

    def _end_reading(self) -> None:
        if self._is_leaving:
            self._transport.abort()
            return
        if self._exchange is None and not self._buffer:
            self.close_if_idle()
            return
        seconds = self._limits.options.read_timeout
        self._refuse(ReadTimeoutError(f"The request did not come within {seconds:g} s."))

    # --- ending ---------------------------------------------------------------------------------

    def abort(self) -> None:
        """Cut the connection: an answer was begun that cannot be ended."""
        self._transport.abort()

    def _refuse(self, error: ZSEError) -> None:
        """Say what is wrong, unless an answer has begun, and close."""
        LOG.info("refused", extra={"reason": error.message[:200], "status": error.http_status})
        exchange = self._exchange
        if exchange is not None:
            self._exchange = None
            exchange.lose_client()
        if exchange is None or not exchange.has_begun:
            self.write(refusal(error))
        self._leave(lingers=True)

    def _leave(self, *, lingers: bool) -> None:
        """Close once everything is written, and a client that still sends has read it."""
        self.take_back()
        self._flush()
        self._is_leaving = True
        self._limits.mark_busy(self)
        self._buffer.clear()
        self._deadline = inf
        if lingers and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self.resume_reading()
            self._deadline = self._loop.time() + LINGER_SECONDS
        else:
            self._transport.close()
