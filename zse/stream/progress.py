"""What the threads of one load share: the work left, the groups that are complete, the error."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from zse.errors import LoadCancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.stream.plan import Chunk, ReadPlan


class LoadProgress:
    """Thread-safe.

    Args:
        plan: The load.
        by_group: Hand out whole groups instead of chunks, so that one thread sees all of a group.
        on_group: Called with a group's name, by the thread that completed it.
    """

    def __init__(
        self, plan: ReadPlan, *, by_group: bool, on_group: Callable[[str], None] | None
    ) -> None:
        self._names = tuple(group.name for group in plan.groups)
        self.landed_bytes = 0
        """In device memory so far."""
        self._left = [len(group.chunks) for group in plan.groups]
        self._work = _shares(plan, by_group=by_group)
        self._on_group = on_group
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def next_work(self) -> tuple[Chunk, ...] | None:
        """Return the next chunks for one thread, or None when there are none or it must stop."""
        with self._changed:
            return None if self.error else next(self._work, None)

    def landed(self, chunk: Chunk) -> None:
        with self._changed:
            self.landed_bytes += chunk.length_bytes
            self._left[chunk.group] -= 1
            complete = self._left[chunk.group] == 0
            if complete:
                self._changed.notify_all()
        if complete and self._on_group is not None:
            self._on_group(self._names[chunk.group])

    def fail(self, error: BaseException) -> bool:
        """Stop every thread; return whether this was the first error."""
        with self._changed:
            if self.error is not None:
                return False
            self.error = error
            self._changed.notify_all()
            return True

    def wait_for_group(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)
        index = self._names.index(name)
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or not self._left[index])
            if self._left[index]:
                raise self.error or LoadCancelledError("the load was stopped")


def _shares(plan: ReadPlan, *, by_group: bool) -> Iterator[tuple[Chunk, ...]]:
    for group in plan.groups:
        if by_group:
            yield group.chunks
        else:
            yield from ((chunk,) for chunk in group.chunks)
