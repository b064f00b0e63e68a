"""States of linear attention in this process's memory, resident once they are written."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages
from zse.backends.states import StateSlots
from zse.errors import UsageError
from zse.kernels.native import structs

if TYPE_CHECKING:
    from zse.backends.states import StateLayout


_MOST_SLOTS = 1 << 16
"""That ``struct zse_rows`` can name."""


class StatePool:
    """The states of so many slots, layer by layer; nothing where no layer has any.

    Raises:
        UsageError: There are more of them than kernels can name.
    """

    def __init__(self, layout: StateLayout) -> None:
        shapes, num_slots = layout.shapes, layout.num_slots
        if num_slots > _MOST_SLOTS:
            raise UsageError(
                f"states for {layout.num_sequences} sequences at once were asked for; "
                f"there can be {_MOST_SLOTS} states in all",
                hint="Let fewer answers run at once: --max-running.",
            )
        self.slots = StateSlots(layout)
        self._shapes = shapes
        numbers = sum(shape.ring_numbers + shape.state_numbers for shape in shapes.values())
        self._pages = Pages(4 * num_slots * numbers) if shapes else None
        self._layers = (structs.State * (max(shapes, default=-1) + 1))()
        end = self._pages.address if self._pages is not None else 0
        for index, shape in shapes.items():
            layer = self._layers[index]
            layer.rings, end = end, end + 4 * num_slots * shape.ring_numbers
            layer.matrices, end = end, end + 4 * num_slots * shape.state_numbers
        self.address = ctypes.addressof(self._layers) if shapes else 0
        """Of one ``struct zse_state`` a layer; that of a layer without states is not read."""

    def copy(self, from_slot: int, to_slot: int) -> None:
        """Copy the state of one slot to another, both as sequences and checkpoints name them."""
        source, destination = self.slots.of(from_slot), self.slots.of(to_slot)
        for index, shape in self._shapes.items():
            layer = self._layers[index]
            for start, numbers in (
                (layer.rings, shape.ring_numbers),
                (layer.matrices, shape.state_numbers),
            ):
                length = 4 * numbers
                ctypes.memmove(start + destination * length, start + source * length, length)

    def close(self) -> None:
        """Give the memory back; no step may use it afterwards."""
        if self._pages is not None:
            self._pages.close()
