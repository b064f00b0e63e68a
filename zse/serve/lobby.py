"""Where connections wait that have not said yet whose they are: one thread, and no place of others.

Whoever connects may be anybody. So heads are read here, without blocking, and only a connection
whose first head is whole is handed on. A connection has some seconds for it; of one address, and
of all together, there are so many at once, and the oldest goes when another comes: who fills the
lobby from one address turns out nobody but itself.
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
_MOST_OF_AN_ADDRESS = 16
_LOOK_SECONDS = 0.25


class _Guest:
    """One connection, and what it has said."""

    __slots__ = ("address", "connection", "data", "deadline")

    def __init__(self, connection: socket.socket, address: str, deadline: float) -> None:
        self.connection = connection
        self.address = address
        self.deadline = deadline
        self.data = b""


class Lobby:
    """Takes connections in and hands on those that have said something whole.

    Args:
        listener: Listens already.
        hand_on: Called by the lobby's thread with a connection and its first head, which must not
            take long; the connection is the other's then.
        seconds: How long a connection has for its first head; asked for each.
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
        self._guests: dict[int, _Guest] = {}
        """By descriptor, the longest here first."""
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
            for key, _ in self._selector.select(_LOOK_SECONDS if self._guests else None):
                if key.fileobj is self._listener:
                    self._take_in()
                elif (guest := self._guests.get(key.fd)) is not None:
                    self._listen_to(guest)
            now = time.monotonic()
            for descriptor, guest in list(self._guests.items()):
                if guest.deadline <= now:
                    self._listen_to(guest)  # it may have spoken while this process did not run
                    if descriptor in self._guests:
                        self._turn_out(guest)
        for guest in list(self._guests.values()):
            self._turn_out(guest)
        self._selector.close()
        self._listener.close()

    def _take_in(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            return
        guest = _Guest(connection, str(address[0]), time.monotonic() + self._seconds())
        neighbours = [each for each in self._guests.values() if each.address == guest.address]
        if len(neighbours) >= _MOST_OF_AN_ADDRESS:
            self._turn_out(neighbours[0])
        elif len(self._guests) >= _MOST_WAITING:
            self._turn_out(next(iter(self._guests.values())))
        connection.setblocking(False)
        self._guests[connection.fileno()] = guest
        self._selector.register(connection, selectors.EVENT_READ)

    def _listen_to(self, guest: _Guest) -> None:
        try:
            more = guest.connection.recv(MAX_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        guest.data += more
        head, end, rest = guest.data.partition(b"\r\n\r\n")
        if not more or len(guest.data) > MAX_HEAD_BYTES or rest:
            self._turn_out(guest)
        elif end:
            self._let_go(guest)
            guest.connection.setblocking(True)
            self._hand_on(guest.connection, head.decode("latin-1"))

    def _let_go(self, guest: _Guest) -> None:
        del self._guests[guest.connection.fileno()]
        self._selector.unregister(guest.connection)

    def _turn_out(self, guest: _Guest) -> None:
        self._let_go(guest)
        guest.connection.close()
