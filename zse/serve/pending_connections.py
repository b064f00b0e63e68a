"""Connections whose first request has not come yet: one thread reads them all, without blocking.

Anybody can connect, so a connection gets one of the few serving threads only when its first head is
whole. It has some seconds for that. How many wait at once is bounded for each address and for all
together; past a bound the oldest is closed, so an address that floods this closes only its own.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HEAD_BYTES = 8192
_PAUSE_SECONDS = 0.1
"""Before the next look where a connection could not be taken, as when descriptors have run out."""
_MOST_WAITING = 64
_MOST_OF_ONE_ADDRESS = 16
_POLL_SECONDS = 0.25


class _Pending:
    """One connection, and what it has said."""

    __slots__ = ("address", "connection", "data", "deadline")

    def __init__(self, connection: socket.socket, address: str, deadline: float) -> None:
        self.connection = connection
        self.address = address
        self.deadline = deadline
        self.data = b""


class PendingConnections:
    """Accepts connections and hands on each whose first request head is complete.

    Args:
        listener: Listens already.
        hand_on: Called by the thread of ``run`` with a connection and its first head. It owns the
            connection from then on, and must return quickly.
        seconds: Returns how long a connection has for its first head; called for each.
    """

    def __init__(
        self,
        listener: socket.socket,
        hand_on: Callable[[socket.socket, str], None],
        *,
        seconds: Callable[[], float],
    ) -> None:
        self._listener = listener
        self._hand_on = hand_on
        self._seconds = seconds
        self._pending: dict[int, _Pending] = {}
        """By descriptor, the oldest first."""
        self._selector = selectors.DefaultSelector()
        self._is_closed = False

    def close(self) -> None:
        """Have ``run`` end; in any thread."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes it

    def run(self) -> None:
        """Take connections until it is closed, then let go of all that wait, and of the listener.

        It is what a thread does.
        """
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._is_closed:
            for key, _ in self._selector.select(_POLL_SECONDS if self._pending else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif (pending := self._pending.get(key.fd)) is not None:
                    self._read_from(pending)
            now = time.monotonic()
            for descriptor, pending in list(self._pending.items()):
                if pending.deadline <= now:
                    self._read_from(pending)  # it may have spoken while this process did not run
                    if descriptor in self._pending:
                        self._drop(pending)
        for pending in list(self._pending.values()):
            self._drop(pending)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            return
        pending = _Pending(connection, str(address[0]), time.monotonic() + self._seconds())
        neighbours = [each for each in self._pending.values() if each.address == pending.address]
        if len(neighbours) >= _MOST_OF_ONE_ADDRESS:
            self._drop(neighbours[0])
        elif len(self._pending) >= _MOST_WAITING:
            self._drop(next(iter(self._pending.values())))
        connection.setblocking(False)
        self._pending[connection.fileno()] = pending
        self._selector.register(connection, selectors.EVENT_READ)

    def _read_from(self, pending: _Pending) -> None:
        try:
            more = pending.connection.recv(MAX_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        pending.data += more
        head, end, rest = pending.data.partition(b"\r\n\r\n")
        if not more or len(pending.data) > MAX_HEAD_BYTES or rest:
            self._drop(pending)
        elif end:
            self._forget(pending)
            pending.connection.setblocking(True)
            self._hand_on(pending.connection, head.decode("latin-1"))

    def _forget(self, pending: _Pending) -> None:
        del self._pending[pending.connection.fileno()]
        self._selector.unregister(pending.connection)

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()
