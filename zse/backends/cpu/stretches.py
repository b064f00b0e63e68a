"""Programs in stretches: between them a layer that streams is waited for, or let go."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.kernels.native import structs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.cpu.pacing import PacedWeights
    from zse.backends.cpu.recording import Mark, Recording
    from zse.backends.handles import LayerWeights

Run: TypeAlias = "Callable[[Any, Any, int, Any], object]"
"""``zse_run``: a pool, operations, how many, and the step."""


class Stretches:
    """Where a program's layers that stream begin and end."""

    def __init__(self, paced: PacedWeights, marks: Sequence[Mark]) -> None:
        self._paced = paced
        self._marks = marks

    def run(
        self, run: Run, all_operations: Any, pool: object, operations: Any, count: int, step: Any
    ) -> None:
        """Run so many of a program's operations; those of its head alone are none of a layer."""
        if operations is not all_operations:
            run(pool, operations, count, step)
            return
        start, size, done = ctypes.addressof(operations), ctypes.sizeof(structs.Operation), 0
        for place, number, is_entry in (*self._marks, (count, -1, False)):
            if place > done:
                first = ctypes.cast(start + done * size, ctypes.POINTER(structs.Operation))
                run(pool, first, place - done, step)
                done = place
            if number < 0:
                return
            if is_entry:
                self._paced.enter(number)
            else:
                self._paced.leave(number)


class MarkedLayer:
    """The scope of a layer that streams, while a program is recorded."""

    def __init__(self, recording: Recording, number: int, weights: LayerWeights) -> None:
        self._recording = recording
        self._number = number
        self._weights = weights

    def __enter__(self) -> LayerWeights:
        self._recording.mark(self._number, is_entry=True)
        return self._weights

    def __exit__(self, *_: object) -> None:
        self._recording.mark(self._number, is_entry=False)
