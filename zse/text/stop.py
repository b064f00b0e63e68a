"""Stop strings: found across token borders, and never shown, not even in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopChecker:
    """Holds back the end of a text while it may be the beginning of a stop string."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stop_strings if stop))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """Take new text.

        Returns:
            What may be shown, and whether a stop string was found. The text before the earliest
            stop string is shown, the string and all that follows is dropped.
        """
        if self.found is not None:
            return "", True
        held = self._held + text
        starts = {stop: start for stop in self._stops if (start := held.find(stop)) >= 0}
        if starts:
            self.found, self._held = min(starts, key=starts.__getitem__), ""
            return held[: starts[self.found]], True
        keep = self._possible_prefix_length(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """Return what is held back: the text ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_prefix_length(self, text: str) -> int:
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
