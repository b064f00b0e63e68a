"""One connection to a peer: a thread that reads, and sends that never wait for a slow peer.

What cannot be sent at once is kept in order and sent by a thread of its own, up to a bound; past
that the peer counts as lost. Whoever listens is told of frames, and once of the end.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from zse.errors import MeshError
from zse.mesh.frames import packed, read_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.frames import Frame
    from zse.mesh.handshake import Channel, Introduction

_LOG = logging.getLogger("zse.mesh")
_MOST_WAITING_BYTES = 1 << 30
_POLL_SECONDS = 0.5


class Link:
    """A live connection.

    Args:
        channel: Of the handshake; the link's from here on.
        on_frame: Called by the reading thread, frame by frame.
        on_end: Called once, by whichever thread saw the end, with what ended it.
    """

    def __init__(
        self,
        channel: Channel,
        on_frame: Callable[[Link, Frame], None],
        on_end: Callable[[Link, str], None],
    ) -> None:
        self._channel = channel
        self._socket = channel.socket
        self._on_frame, self._on_end = on_frame, on_end
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._has_waiting = threading.Condition(self._lock)
        self._is_closed = False
        self.last_heard = time.monotonic()
        """When a frame last came."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._reader = threading.Thread(target=self._read, name="zse-mesh-read", daemon=True)
        self._writer: threading.Thread | None = None

    def start(self) -> Link:
        """Begin to read: a receive is posted from now on."""
        self._reader.start()
        return self

    @property
    def peer(self) -> Introduction:
        return self._channel.peer

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def send(self, frame: Frame) -> None:
        """Send a frame, or have it sent behind those that wait; a closed link takes none."""
        with self._lock:
            if self._is_closed:
                return
            parts = [memoryview(p).cast("B") for p in packed(frame, self._channel.sends) if p]
            if not self._waiting:
                parts = self._send_now(parts)
            if not parts:
                return
            self._waiting.extend(parts)
            self._waiting_bytes += sum(map(len, parts))
            is_full = self._waiting_bytes > _MOST_WAITING_BYTES
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write, name="zse-mesh-write", daemon=True
                )
                self._writer.start()
            self._has_waiting.notify()
        if is_full:
            self.close("the peer takes nothing")

    def close(self, reason: str = "closed here") -> None:
        """End the link; twice does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._waiting.clear()
            self._has_waiting.notify()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._on_end(self, reason)

    def _send_now(self, parts: list[memoryview]) -> list[memoryview]:
        """Return what the socket does not take at once."""
        try:
            sent = self._socket.sendmsg(parts, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            return []  # the reading thread sees the end
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][sent:]
        return parts

    def _write(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._is_closed:
                    self._has_waiting.wait()
                if self._is_closed:
                    return
                before = self._waiting_bytes
                left = self._send_now(list(self._waiting)[:64])
                rest = list(self._waiting)[64:]
                self._waiting = deque([*left, *rest])
                self._waiting_bytes = sum(map(len, self._waiting))
                is_stuck = self._waiting_bytes == before and bool(self._waiting)
            if is_stuck:
                with contextlib.suppress(OSError, ValueError):
                    select.select([], [self._socket], [], _POLL_SECONDS)

    def _read(self) -> None:
        reason = "the peer hung up"
        try:
            while True:
                frame = read_frame(self._receive, self._channel.receives)
                self.last_heard = time.monotonic()
                self._on_frame(self, frame)
        except MeshError as error:
            reason = str(error)
        except OSError as error:
            reason = error.strerror or str(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the link ends with it
            _LOG.exception("a frame could not be dealt with")
            reason = str(error)
        self.close(reason)

    def _receive(self, count: int) -> bytearray:
        data = bytearray(count)
        view, filled = memoryview(data), 0
        while filled < count:
            taken = self._socket.recv_into(view[filled:])
            if not taken:
                raise MeshError("the peer hung up")
            filled += taken
        return data
