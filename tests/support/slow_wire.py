"""A wire in front of an address: bytes towards it go on at a rate, what comes back at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_PIECE_BYTES = 4096


class SlowWire:
    """Listens at ``address``; each connection has the rate for itself, in bytes a second."""

    def __init__(self, target: str, bytes_per_second: float) -> None:
        host, _, port = target.rpartition(":")
        self._target, self.bytes_per_second = (host, int(port)), bytes_per_second
        self.is_cut = False
        """Nothing comes or goes, and nobody is told: as if the cable were out."""
        self._listener = socket.socket()
        # Little may wait here: what the sender's system was told has arrived is what went on.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        self.is_cut, self.bytes_per_second = False, float("inf")
        for one in self._open:
            _shut(one)
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()

    def _start(self, target, *words) -> None:
        self._threads.append(threading.Thread(target=target, args=words, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                self._open.append(caller)
                there = socket.create_connection(self._target)
                self._open.append(there)
                self._start(self._pass_on, caller, there, True)
                self._start(self._pass_on, there, caller, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                while self.is_cut:
                    time.sleep(0.01)
                target.sendall(data)
                if is_slow:
                    time.sleep(len(data) / self.bytes_per_second)
        for one in (source, target):
            _shut(one)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
