"""What was recorded of a model's program: the list of operations that ``zse_run`` walks."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, addressof, sizeof
from functools import partial
from typing import TYPE_CHECKING

from zse.kernels.native import structs

if TYPE_CHECKING:
    from zse.backends.cpu.stretches import Run, Stretches


class Program:
    """Operations in the order of their execution: those of the layers, then those of the head."""

    def __init__(
        self,
        layers: list[structs.Operation],
        head: list[structs.Operation],
        stretches: Stretches | None = None,
    ) -> None:
        self._stretches = stretches
        self.num_layers = len(layers)
        self.num_head = len(head)
        self.num_operations = self.num_layers + self.num_head
        self.operations = (structs.Operation * self.num_operations)(*layers, *head)
        first = addressof(self.operations) + self.num_layers * sizeof(structs.Operation)
        self.head = ctypes.cast(first, POINTER(structs.Operation))
        """The head's alone, for more wanted rows than are computed at once."""

    def run_by(self, run: Run) -> Run:
        """Return what runs the operations: ``run`` itself, or stretch by stretch."""
        if self._stretches is None:
            return run
        return partial(self._stretches.run, run, self.operations)
