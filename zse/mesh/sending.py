"""The sending half of a link: frames in their order, small ones at once, long ones by a thread.

A sender never waits for a slow peer. Frames wait as they are and are signed when their turn comes,
so that what an order has made void can still be taken back, and a question whether somebody is
there passes frames whose turn has not come.

What is handed to the system is bounded: it would take megabytes more than a wire has room for, and
all that shares the wire, beats too, would stand behind them for as long as they take. What the peer
has acknowledged says that bytes move, which on a slow wire is the only sign of life there is while
a long frame is on its way.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import termios
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from zse.mesh.frames import Kind, packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.frames import Frame, Signer

_MOST_WAITING_BYTES = 1 << 30
LONG_BYTES = 1 << 16
"""From here on a frame is signed and sent by the thread: whoever sends it has better to do."""
_LEAST_IN_FLIGHT_BYTES = 1 << 20
_WIRE_BYTES_PER_SECOND = 250e6
"""That a wire is let have in flight for each second of its round trip: two gigabits."""
_MOST_IN_FLIGHT_SECONDS = 0.1
"""Of what is in flight, at the speed that a wire has shown: slow wires have shallow queues, too."""
_FIRST_IN_FLIGHT_BYTES, _LEAST_AT_ALL_BYTES = 1 << 18, 1 << 16
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1e-3, 0.02
_POLL_SECONDS = 0.5
_MOVED_BYTES, _MOVED_SECONDS = 1 << 13, 0.1
"""That must arrive in so long for a wire to count as one that moves: two thirds of a megabit."""
_MOST_IN_FLIGHT_BYTES = 16 << 20
_TCP_INFO_BYTES, _TCP_INFO_LEAST_ROUND_TRIP = 152, 148
_OVERTAKING = (Kind.BEAT, Kind.STATE)


class Sender:
    """See above.

    Args:
        connection: Open; its owner closes it.
        signer: Of this direction.
        on_full: Called where a peer has taken nothing for a gigabyte.
    """

    def __init__(
        self, connection: socket.socket, signer: Signer, on_full: Callable[[], None]
    ) -> None:
        self._socket, self._signer, self._on_full = connection, signer, on_full
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._frames: deque[Frame] = deque()
        self._parts: list[memoryview] = []
        """Of the frame that has been begun."""
        self._signed: Frame | None = None
        """The frame whose sign is being made, by the thread alone."""
        self._given_bytes = 0
        """To the system, ever."""
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._most_in_flight = _FIRST_IN_FLIGHT_BYTES
        self._arrived_bytes = 0
        self._looked = self.last_moved = time.monotonic()

    def send(self, frame: Frame) -> None:
        """Send a frame, or have it sent behind those that wait; a closed sender takes none."""
        with self._lock:
            if self._is_closed:
                return
            if len(frame.body) < LONG_BYTES and not self._is_busy():
                self._begin(packed(frame, self._signer))
                self._give(1 << 62)
                if not self._parts:
                    return
            else:
                self._put(frame)
            self._wake()
            is_full = self._waiting_bytes() > _MOST_WAITING_BYTES
        if is_full:
            self._on_full()

    def drop(self, is_void: Callable[[Frame], bool]) -> None:
        """Take back frames that have not been begun."""
        with self._lock:
            self._frames = deque(frame for frame in self._frames if not is_void(frame))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._frames.clear()
            self._changed.notify()

    @property
    def backlog_bytes(self) -> int:
        """Of what the peer has not got yet."""
        with self._lock:
            waiting = self._waiting_bytes()
        return waiting + self._in_flight()

    def look(self, now: float) -> None:
        """Note whether bytes arrive; for one thread, every now and then."""
        if now - self._looked < _MOVED_SECONDS:
            return
        arrived = self._given_bytes - self._in_flight()
        if arrived - self._arrived_bytes >= _MOVED_BYTES * (now - self._looked) / _MOVED_SECONDS:
            self.last_moved = now
        self._looked, self._arrived_bytes = now, arrived

    def _in_flight(self) -> int:
        return unsent_bytes(self._socket)

    def _waiting_bytes(self) -> int:
        signed = 0 if self._signed is None else len(self._signed.body)
        waiting = sum(len(frame.body) for frame in self._frames)
        return signed + waiting + sum(map(len, self._parts))

    def _is_busy(self) -> bool:
        return bool(self._frames or self._parts or self._signed)

    def _put(self, frame: Frame) -> None:
        if frame.kind in _OVERTAKING:
            # One that waits is replaced: the later one says all that it did.
            self._frames = deque(one for one in self._frames if one.kind is not frame.kind)
            self._frames.appendleft(frame)
        else:
            self._frames.append(frame)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zse-mesh-write", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _begin(self, parts: list[bytes | bytearray | memoryview]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts if part]

    def _give(self, most_bytes: int) -> int:
        """Give the system what it takes of the frame that was begun; return how much that was."""
        given: list[memoryview] = []
        for part in self._parts:
            if most_bytes > 0:
                given.append(part[:most_bytes])
                most_bytes -= len(part)
        try:
            taken = sent = self._socket.sendmsg(given, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the reading thread sees the end
            self._parts = []
            return 0
        while self._parts and sent >= len(self._parts[0]):
            sent -= len(self._parts.pop(0))
        if self._parts:
            self._parts[0] = self._parts[0][sent:]
        self._given_bytes += taken
        return taken

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._is_closed and not self._frames and not self._parts:
                    self._changed.wait()
                if self._is_closed:
                    return
                frame = self._signed = None if self._parts else self._frames.popleft()
            if frame is not None:
                parts = packed(frame, self._signer)  # nobody else signs while this is said to
                with self._lock:
                    self._signed = None
                    self._begin(parts)
            self._give_all()

    def _give_all(self) -> None:
        """Give the system the frame that was begun, as fast as its wire takes it."""
        bound, begun = most_in_flight(self._socket), time.monotonic()
        before, pause = self._given_bytes - self._in_flight(), _LEAST_PAUSE_SECONDS
        while self._parts and not self._is_closed:
            in_flight = self._in_flight()
            passed = time.monotonic() - begun
            if passed > _MOST_IN_FLIGHT_SECONDS / 10:
                rate = max((self._given_bytes - in_flight - before) / passed, 1.0)
                wanted = int(rate * _MOST_IN_FLIGHT_SECONDS)
                self._most_in_flight = max(_LEAST_AT_ALL_BYTES, wanted)
                # Until a quarter has arrived there is nothing to do but to use a processor.
                drained = min(bound, self._most_in_flight) / (4 * rate)
                pause = min(max(drained, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)
            room = min(bound, self._most_in_flight) - in_flight
            if room <= 0:
                time.sleep(pause)
                continue
            with self._lock:
                taken = self._give(room)
            if not taken and self._parts:
                with contextlib.suppress(OSError, ValueError):
                    select.select([], [self._socket], [], _POLL_SECONDS)


def most_in_flight(connection: socket.socket) -> int:
    """Return how many bytes the system is given that have not arrived: twice what a wire holds."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        microseconds = struct.unpack_from("=I", info, _TCP_INFO_LEAST_ROUND_TRIP)[0]
    except (AttributeError, OSError, struct.error):
        microseconds = 0
    wanted = int(microseconds * 1e-6 * _WIRE_BYTES_PER_SECOND)
    return min(max(_LEAST_IN_FLIGHT_BYTES, wanted), _MOST_IN_FLIGHT_BYTES)


def unread_bytes(connection: socket.socket) -> int:
    """Return the bytes that have come and that nobody has read; 0 where the system says nothing."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))[0])
    except (OSError, ValueError):
        return 0


def unsent_bytes(connection: socket.socket) -> int:
    """Return the bytes that the system was given and the peer has not acknowledged.

    Where the system does not say: 0, as if all had arrived.
    """
    try:
        return int(struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])
    except (OSError, ValueError):
        return 0
