"""States of linear attention on the device: one of fixed size for each sequence, layer by layer.

A layer holds the rings of all slots ``[slots, width, channels]``, then their matrices ``[slots,
value_heads, key_dim, value_dim]``, both float32. Which slot is whose: ``zse.backends.states``, and
where drafts are checked ``draft_states``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.delta.launch import DeltaStates
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.device.gpu import Gpu, Stream
    from zse.kernels.delta.shape import DeltaShape

_ALIGNMENT = 256


class StatePool:
    """The states of so many slots.

    What lies in a slot at first does not matter: a token at position 0 starts from an empty state.
    """

    def __init__(self, gpu: Gpu, shapes: Mapping[int, DeltaShape], num_slots: int) -> None:
        self._gpu = gpu
        self._shapes = shapes
        sizes = {index: _layer_bytes(shape, num_slots) for index, shape in shapes.items()}
        self.length_bytes = sum(sum(parts) for parts in sizes.values())
        self._block = gpu.allocate(self.length_bytes)
        self.layers: dict[int, DeltaStates] = {}
        """Where each layer's states are, by number."""
        address = self._block.address
        for index, (rings, matrices) in sizes.items():
            self.layers[index] = DeltaStates(rings=address, matrices=address + rings)
            address += rings + matrices

    def copy(self, source: int, destination: int, stream: Stream) -> None:
        """Copy the state of one slot to another."""
        for index, shape in self._shapes.items():
            layer = self.layers[index]
            for address, numbers in (
                (layer.rings, shape.ring_numbers),
                (layer.matrices, shape.state_numbers),
            ):
                length = 4 * numbers
                self._gpu.copy_on_device(
                    address + destination * length, address + source * length, length, stream
                )

    def close(self) -> None:
        self._block.free()


def _layer_bytes(shape: DeltaShape, num_slots: int) -> tuple[int, int]:
    """Return the bytes of rings and of matrices."""
    rings, matrices = 4 * num_slots * shape.ring_numbers, 4 * num_slots * shape.state_numbers
    return align_up(rings, _ALIGNMENT), align_up(matrices, _ALIGNMENT)
