"""One server after another at the same port: its socket is handed from process to process.

A server that is told a path offers its socket there, to processes of its own user. The next server
with that path takes the socket, loads its model, begins to accept and only then relieves the first,
which stops accepting and ends when it has answered what it took. The kernel's queue of connections
belongs to the socket and not to either process, so none of them is lost.

    old  serving .................................... | relieved: answers what it has | ends
    new        takes the socket, loads ..... accepts, | serves ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_OFFER = b"zse1"
_RELIEF = b"R"
_TAKE_SECONDS = 5.0
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of who is at the other end."""


class Predecessor:
    """The server that still serves the port, and its listening socket."""

    def __init__(self, connection: socket.socket, listener: socket.socket) -> None:
        self.listener = listener
        self._connection = connection

    def relieve(self) -> None:
        """Tell it that this process accepts connections now; it may have ended meanwhile."""
        with contextlib.suppress(OSError):
            self._connection.sendall(_RELIEF)
        self._connection.close()


def take_over(path: str) -> Predecessor | None:
    """Take the socket that a server offers at a path; None where no server does.

    Raises:
        UsageError: Something else answers there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TAKE_SECONDS)
    try:
        connection.connect(path)
        greeting, descriptors, _, _ = socket.recv_fds(connection, len(_OFFER), 1)
    except (FileNotFoundError, ConnectionRefusedError):  # the latter: its server has ended
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise _unusable(path, error.strerror or str(error)) from None
    if greeting != _OFFER or not descriptors:
        connection.close()
        raise _unusable(path, "no server answers there")
    return Predecessor(connection, socket.socket(fileno=descriptors[0]))


def _unusable(path: str, why: str) -> UsageError:
    hint = "Name a path in a folder of your own with --handover."
    return UsageError(f"the port cannot be handed over at {path}: {why}", hint=hint)


class Offer:
    """Offers a listening socket at a path.

    Args:
        path: Of a Unix socket; whoever stood there has been relieved.
        listener: What is offered.
        on_relieved: Called in the loop when a successor accepts connections.
    """

    def __init__(
        self, path: str, listener: socket.socket, *, on_relieved: Callable[[], None]
    ) -> None:
        self._path = Path(path)
        self._listener = listener
        self._on_relieved = on_relieved
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._inode = -1
        self._calls: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin to offer.

        Raises:
            UsageError: Nothing can be made at the path.
        """
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)
            self._socket.bind(str(beside))
            beside.chmod(0o600)
            self._socket.listen(4)
            self._inode = beside.stat().st_ino
            beside.replace(self._path)
        except OSError as error:
            self._socket.close()
            raise _unusable(str(self._path), error.strerror or str(error)) from None
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop offering; what a successor offers at the path stays."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for call in self._calls:
            call.cancel()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._socket.accept()
            call = asyncio.create_task(self._serve(connection))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _serve(self, connection: socket.socket) -> None:
        """Hand a copy of the socket to who asks, and wait until it is in use there."""
        with connection, contextlib.suppress(OSError):
            if _user_of(connection) != os.geteuid():
                return
            connection.setblocking(False)
            socket.send_fds(connection, [_OFFER], [self._listener.fileno()])
            told = await asyncio.get_running_loop().sock_recv(connection, len(_RELIEF))
            if told == _RELIEF:  # else the successor ended before it was ready
                self._on_relieved()


def _user_of(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
