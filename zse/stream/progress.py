"""State that the threads of one load share: remaining work, completed groups, the first error."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.stream.plan import Chunk, ReadPlan


class LoadProgress:
    """Thread-safe.

    Args:
        plan: The load.
        by_group: Hand out whole groups instead of chunks, so that one thread reads all of a group
            and can hash it.
    """

    def __init__(self, plan: ReadPlan, *, by_group: bool) -> None:
        self.landed_bytes = 0
        """In device memory so far."""
        self._left = [len(group.chunks) for group in plan.groups]
        self._work = _shares(plan, by_group=by_group)
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        """Notified when a group is complete, and of the first error."""
        self.error: BaseException | None = None

    def next_work(self) -> tuple[Chunk, ...] | None:
        """Return the next chunks for one thread, or None when there are none or it must stop."""
        with self._lock:
            return None if self.error else next(self._work, None)

    def landed(self, chunk: Chunk) -> None:
        with self._lock:
            self.landed_bytes += chunk.length_bytes
            self._left[chunk.group] -= 1
            if self._left[chunk.group] == 0:
                self._news.notify_all()

    def fail(self, error: BaseException) -> bool:
        """Stop every thread; return whether this was the first error."""
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
            self._news.notify_all()
            return True

    def wait_for(self, group: int) -> bool:
        """Wait until a group is complete; return whether it is, which an error can prevent."""
        with self._news:
            while self._left[group] and self.error is None:
                self._news.wait()
            return not self._left[group]


class HeldChunks:
    """Reports one thread's chunks as landed only when their group's digest has been checked."""

    def __init__(self, landed: Callable[[Chunk], None]) -> None:
        self._landed = landed
        self._group = -1
        self._held: list[Chunk] = []

    def landed(self, chunk: Chunk) -> None:
        if chunk.group == self._group:
            self._held.append(chunk)
        else:
            self._landed(chunk)

    def hold(self, group: int) -> None:
        """Hold back the chunks of a group from now on; no other group is held."""
        self._group = group

    def forget(self) -> None:
        """Drop what is held: the group is read again."""
        self._held = []

    def let_go(self) -> None:
        """Report what was held; further chunks are reported as they land."""
        held, self._held, self._group = self._held, [], -1
        for chunk in held:
            self._landed(chunk)


def _shares(plan: ReadPlan, *, by_group: bool) -> Iterator[tuple[Chunk, ...]]:
    for group in plan.groups:
        if by_group:
            yield group.chunks
        else:
            yield from ((chunk,) for chunk in group.chunks)
