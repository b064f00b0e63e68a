"""States of linear attention in this process's memory, resident once they are written."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages
from zse.kernels.native import structs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.kernels.delta.shape import DeltaShape


class StatePool:
    """The states of so many slots, layer by layer; nothing where no layer has any."""

    def __init__(self, shapes: Mapping[int, DeltaShape], num_slots: int) -> None:
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

    def copy(self, source: int, destination: int) -> None:
        """Copy the state of one slot to another."""
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
