"""The largest numbers of turned rows of a model's matrices, which give these rows their scales.

Weights do not change, so they are found once, when the first long prompt comes: a start has no
time for them, and each prompt would lose more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.linear.launch_8bit import find_row_maxima, maxima_bytes
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.device.gpu import Gpu
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight

_ALIGNMENT = 256


class RowMaxima:
    """Room on the device for those of some matrices, and whether they are there."""

    def __init__(self, gpu: Gpu, weights: Sequence[LinearWeight]) -> None:
        self._weights = weights
        self._addresses: dict[int, int] = {}
        self._missing = list(weights)
        """Whose are not found yet."""
        if weights:
            self._block = gpu.allocate(room_for(weights))
            address = self._block.address
            for weight in weights:
                self._addresses[weight.weights] = address
                address += align_up(maxima_bytes(weight), _ALIGNMENT)

    def of(self, weight: LinearWeight) -> int:
        """Return where a matrix's are; 0 if there is no room for them."""
        return self._addresses.get(weight.weights, 0)

    def find(self, launcher: Launcher) -> None:
        """Have all of them found in the launcher's stream, the first time; weights are there."""
        missing, self._missing = self._missing, []
        for weight in missing:
            find_row_maxima(launcher, weight, self.of(weight))

    def find_some(self, launcher: Launcher, is_there: Callable[[LinearWeight], bool]) -> None:
        """Have those found that are not yet, of the matrices that are there."""
        if self._missing:
            late = [weight for weight in self._missing if not is_there(weight)]
            self._missing = [weight for weight in self._missing if is_there(weight)]
            self.find(launcher)
            self._missing = late

    def forget(self) -> None:
        """Note that the weights are others: theirs are found when they are next needed."""
        self._missing = list(self._weights)


def room_for(weights: Sequence[LinearWeight]) -> int:
    """Return the bytes of ``RowMaxima``."""
    return sum(align_up(maxima_bytes(weight), _ALIGNMENT) for weight in weights)
