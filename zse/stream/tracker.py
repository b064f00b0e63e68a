"""How short a device is of memory, as levels that someone can be told of."""

from __future__ import annotations

import enum
import threading
import time
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class MemoryPressure(enum.IntEnum):
    """The higher, the less is left."""

    NORMAL = 0
    HIGH = 1
    """What is kept for speed alone had better go."""
    CRITICAL = 2
    """The next step may find no memory."""
    OOM = 3
    """Nothing is left."""


@record
class PressureLimits:
    """Free bytes below which a level begins."""

    high: int
    critical: int
    oom: int

    def __post_init__(self) -> None:
        if not self.high >= self.critical >= self.oom >= 0:
            raise UsageError(
                f"levels of free memory are {self.high}, {self.critical}, {self.oom} bytes; "
                "expected descending ones, not below 0"
            )

    def level_of(self, free_bytes: int) -> MemoryPressure:
        if free_bytes <= self.oom:
            return MemoryPressure.OOM
        if free_bytes < self.critical:
            return MemoryPressure.CRITICAL
        return MemoryPressure.HIGH if free_bytes < self.high else MemoryPressure.NORMAL

    @classmethod
    def of_total(cls, total_bytes: int) -> PressureLimits:
        """Return levels for a device of so many bytes: 15%, 5% and 1% of it."""
        return cls(high=total_bytes * 15 // 100, critical=total_bytes // 20, oom=total_bytes // 100)


@record
class MemoryState:
    """What was found."""

    free_bytes: int
    total_bytes: int
    pressure: MemoryPressure

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


class MemoryTracker:
    """Looks at a device's memory when it is asked to, or beside everything else. Thread-safe.

    Args:
        read: Returns free and total bytes.
        limits: Where levels begin; by the device's size when not given.
        clock: Seconds.
    """

    def __init__(
        self,
        read: Callable[[], tuple[int, int]],
        limits: PressureLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[MemoryState], None]] = []
        free, total = read()
        self.limits = limits or PressureLimits.of_total(total)
        self._state = MemoryState(
            free_bytes=free, total_bytes=total, pressure=self.limits.level_of(free)
        )
        self._looked_at = clock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> MemoryState:
        """What was found last."""
        return self._state

    @property
    def pressure(self) -> MemoryPressure:
        return self._state.pressure

    def on_change(self, callback: Callable[[MemoryState], None]) -> None:
        """Have someone called whenever the level changes, by whoever looks."""
        with self._lock:
            self._callbacks.append(callback)

    def update(self, *, not_before_seconds: float = 0.0) -> MemoryState:
        """Look again, unless that was done so short a time ago."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at < not_before_seconds:
                return self._state
            self._looked_at = now
            free, total = self._read()
            before = self._state.pressure
            self._state = MemoryState(
                free_bytes=free, total_bytes=total, pressure=self.limits.level_of(free)
            )
            state, callbacks = self._state, list(self._callbacks)
        if state.pressure is not before:
            for callback in callbacks:
                callback(state)
        return state

    def optimal_window(self, layer_bytes: Sequence[int], *, reserve_bytes: int = 0) -> int:
        """Return how many layers fit what is free now beside ``reserve_bytes``, the largest ones.

        At least one, however little is free: a model cannot be computed in less.
        """
        left = self.update().free_bytes - reserve_bytes
        count = 0
        for size in sorted(layer_bytes, reverse=True):
            left -= size
            if left < 0:
                break
            count += 1
        return max(1, count)

    def start(self, every_seconds: float = 0.5) -> None:
        """Look from time to time, by a thread of its own, until ``stop``."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run, args=(every_seconds,), name="zse-memory", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread; twice does nothing."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self, every_seconds: float) -> None:
        while not self._stop.wait(every_seconds):
            self.update()
