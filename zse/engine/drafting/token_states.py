"""The states of a sequence's newest tokens, for whoever guesses by them, as steps leave them."""

from __future__ import annotations

_MOST = 2048
"""Tokens whose states wait to be read at most, the newest, and those of one step."""
_NUMBER_BYTES = 4


class TokenStates:
    """Float32 rows by the places of their tokens, without a gap.

    Args:
        width: Numbers of a state.
        most: Rows that are kept, but for those that came together.
    """

    def __init__(self, width: int, most: int = _MOST) -> None:
        self._width = width
        self._most = most
        self._runs: list[tuple[int, bytearray]] = []
        """Of rows that came together, the place of the first and their bytes."""

    @property
    def first(self) -> int:
        """Place of the first state that is there."""
        return self._runs[0][0] if self._runs else 0

    @property
    def end(self) -> int:
        """Place behind the last one."""
        return self._end_of(self._runs[-1]) if self._runs else 0

    def room(self, start: int, count: int) -> memoryview:
        """Return memory for the states of ``count`` tokens, which a step will fill.

        States from ``start`` on are forgotten: of drafts that were wrong, of what is computed anew.
        """
        while self._runs and self._runs[-1][0] >= start:
            self._runs.pop()
        if self._runs and self.end > start:
            first, rows = self._runs.pop()
            self._runs.append((first, rows[: (start - first) * self._row_bytes]))
        if self._runs and self.end < start:
            self._runs.clear()
        added = bytearray(count * self._row_bytes)
        self._runs.append((start, added))
        while len(self._runs) > 1 and self.end - self._runs[1][0] >= self._most:
            del self._runs[0]
        return memoryview(added)

    def rows(self, start: int, end: int) -> memoryview:
        """Return the states of places ``start`` to ``end``, all of which are there."""
        assert self.first <= start <= end <= self.end
        size = self._row_bytes
        parts = [
            rows[max(0, start - first) * size : max(0, end - first) * size]
            for first, rows in self._runs
        ]
        return memoryview(b"".join(parts))

    def drop(self, before: int) -> None:
        """Forget whole runs of states before a place; nobody will read them."""
        while self._runs and self._end_of(self._runs[0]) <= before:
            del self._runs[0]

    @property
    def _row_bytes(self) -> int:
        return _NUMBER_BYTES * self._width

    def _end_of(self, run: tuple[int, bytearray]) -> int:
        return run[0] + len(run[1]) // self._row_bytes
