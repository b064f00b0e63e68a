"""What tells that a rank gets nowhere: its process's state, and what ranks have done so far."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.engine.ranks.shared import Sender, SharedMemory


class Progress:
    """Whether the ranks still move while they have something to do."""

    def __init__(self, shared: SharedMemory, sender: Sender, timeout_seconds: float) -> None:
        self._shared, self._sender = shared, sender
        self._timeout_seconds = timeout_seconds
        self._moved: tuple[int, ...] = ()
        self._since = time.monotonic()

    def look(self) -> str | None:
        """Return what is wrong, or None."""
        now, ranks = time.monotonic(), 1 + len(self._sender.others)
        moved = (self._sender.num_sent, *self._shared.moved(ranks))
        if moved != self._moved or self._sender.num_done == self._sender.num_sent:
            self._moved, self._since = moved, now
            return None
        if now - self._since < self._timeout_seconds:
            return None
        return f"no rank has moved for {self._timeout_seconds:.0f} s in the midst of a step"


def state_of(pid: int) -> str:
    """Return the letter of a process's state; a space where it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - ten times a second
            return file.read(512).rpartition(b") ")[2][:1].decode() or " "
    except OSError:
        return " "
