"""One connection to a peer: a thread that reads, and sends that never wait for a slow peer.

Whoever listens is told of frames, and once of the end.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from zse.errors import MeshError
from zse.mesh.frames import read_frame
from zse.mesh.sending import Sender, unread_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.frames import Frame
    from zse.mesh.handshake import Channel, Introduction

_LOG = logging.getLogger("zse.mesh")


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
        self._is_closed = False
        self.last_heard = time.monotonic()
        """When a frame last came."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._reader = threading.Thread(target=self._read, name="zse-mesh-read", daemon=True)
        self._sender = Sender(
            self._socket, channel.sends, lambda: self.close("the peer takes nothing")
        )

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

    @property
    def backlog_bytes(self) -> int:
        """Of what the peer has not got yet."""
        return self._sender.backlog_bytes

    @property
    def has_unread(self) -> bool:
        """Whether the peer has said something that the reading thread has not come to yet."""
        return unread_bytes(self._socket) > 0

    @property
    def last_moved(self) -> float:
        """When bytes of a long frame last arrived there, as far as ``look`` has seen."""
        return self._sender.last_moved

    def look(self, now: float) -> None:
        """Note whether what was sent arrives; for one thread, every now and then."""
        if not self._is_closed:
            self._sender.look(now)

    def send(self, frame: Frame) -> None:
        """Send a frame, or have it sent behind those that wait; a closed link takes none."""
        self._sender.send(frame)

    def drop(self, is_void: Callable[[Frame], bool]) -> None:
        """Take back frames that have not been begun."""
        self._sender.drop(is_void)

    def close(self, reason: str = "closed here") -> None:
        """End the link; twice does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._sender.close()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._on_end(self, reason)

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
