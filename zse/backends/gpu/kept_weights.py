"""Weights that are kept as the 8-bit products of prompts read them, where there is memory for it.

Turned anew for each step they take a fifth of the time of 2,048 tokens, and more of fewer. Kept
they take a byte a weight, which a large GPU has to spare. They are made when the first long prompt
comes: a server that is asked nothing long never makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import DeviceError
from zse.kernels.linear.launch_8bit import turn_matrix, turned_at, turned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.gpu.row_maxima import RowMaxima
    from zse.device.gpu import Block, Gpu
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Turned
    from zse.kernels.linear.weight import LinearWeight

FREE_SHARE = 8
"""Part of the memory beside the weights that may be taken from the cache for them."""


class KeptWeights:
    """Room for turned matrices, in their order as far as it goes, and whether they are there."""

    def __init__(self, gpu: Gpu, weights: Sequence[LinearWeight], limit_bytes: int) -> None:
        self._gpu = gpu
        self._weights = kept_of(weights, limit_bytes)
        self._block: Block | None = None
        self._turned: dict[int, Turned] = {}
        self._missing = list(self._weights)
        """What is not turned yet."""

    @property
    def length_bytes(self) -> int:
        """Bytes that they take, or will take."""
        return sum(turned_bytes(weight.rows, weight.columns) for weight in self._weights)

    def keeps(self, weights: Sequence[LinearWeight]) -> bool:
        """Whether all of some matrices are kept, or will be."""
        kept = {weight.weights for weight in self._weights}
        return all(weight.weights in kept for weight in weights)

    @property
    def taken_bytes(self) -> int:
        """Bytes that they take by now."""
        return 0 if self._block is None else self._block.length_bytes

    def of(self, weight: LinearWeight) -> Turned | None:
        """Return a matrix, turned; None where it is not kept."""
        return self._turned.get(weight.weights)

    def take(self) -> bool:
        """Take the memory, the first time; whether anything has changed.

        Where it is gone by now they are turned for each step, as others are.
        """
        if self._block is not None or not self._weights:
            return False
        try:
            self.hold()
        except DeviceError as error:
            if not error.is_out_of_memory:
                raise
            self._weights, self._missing = [], []
        return True

    def hold(self) -> None:
        """Have the memory from now on, because steps cannot do without.

        Raises:
            DeviceError: It is gone.
        """
        if self._block is not None:
            return
        self._block = self._gpu.allocate(self.length_bytes)
        address = self._block.address
        for weight in self._weights:
            self._turned[weight.weights] = turned_at(address, weight.rows, weight.columns)
            address += turned_bytes(weight.rows, weight.columns)

    def make(self, launcher: Launcher, maxima: RowMaxima) -> None:
        """Have those turned that are not yet, in the launcher's stream; maxima are found.

        Memory is taken.
        """
        missing, self._missing = self._missing, []
        for weight in missing:
            turn_matrix(launcher, weight, maxima.of(weight), self._turned[weight.weights])

    def make_some(
        self, launcher: Launcher, maxima: RowMaxima, is_there: Callable[[LinearWeight], bool]
    ) -> None:
        """Do what ``make`` does for the matrices that are there."""
        if self._missing:
            late = [weight for weight in self._missing if not is_there(weight)]
            self._missing = [weight for weight in self._missing if is_there(weight)]
            self.make(launcher, maxima)
            self._missing = late

    def forget(self) -> None:
        """Note that the weights are others: they are turned when they are next needed."""
        self._missing = list(self._weights)

    def give_up(self) -> bool:
        """Give the memory back for good, when no step reads it; whether there was some."""
        block, self._block, self._weights = self._block, None, []
        self._missing = []
        self._turned.clear()
        if block is not None:
            block.free()
        return block is not None


def kept_of(weights: Sequence[LinearWeight], limit_bytes: int) -> list[LinearWeight]:
    """Return the first matrices that fit into so many bytes when they are turned."""
    kept = []
    for weight in weights:
        limit_bytes -= turned_bytes(weight.rows, weight.columns)
        if limit_bytes < 0:
            break
        kept.append(weight)
    return kept
