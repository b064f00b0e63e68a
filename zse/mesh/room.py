"""How much of what has come may wait to be dealt with: who reads it from a wire waits for room."""

from __future__ import annotations

import threading

_LOOK_SECONDS = 0.1


class Room:
    """Bytes that are held, up to a bound; what is larger than all of it is held alone.

    Who cannot put in what it has read does not read on, so the wire fills, and its other end sees
    that: nothing is lost, and a peer that sends without end takes no more memory than this.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def take(self, num_bytes: int) -> None:
        """Wait until there is room for so many bytes, and hold them."""
        with self._changed:
            while self._held_bytes + num_bytes > self._most_bytes and self._held_bytes:
                if self._is_closed:
                    break
                self._changed.wait(_LOOK_SECONDS)
            self._held_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Hold so many bytes no longer."""
        with self._changed:
            self._held_bytes -= num_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
