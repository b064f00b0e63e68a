"""What prompts read of a model's matrices beside what is stored: scales of rows, and turned rows.

Both follow from the weights alone, so they are made once: of all matrices when the first long
prompt comes, or of each layer's as this arrives, by a prompt that came before its weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.kept_weights import KeptWeights
    from zse.backends.gpu.row_maxima import RowMaxima
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight


class Turning:
    """Makes it in a launcher's stream, behind weights that are there and before who reads it."""

    def __init__(self, maxima: RowMaxima, kept: KeptWeights) -> None:
        self._maxima = maxima
        self._kept = kept

    def all(self, launcher: Launcher) -> None:
        """Make what is missing."""
        self._maxima.find(launcher)
        self._kept.make(launcher, self._maxima)

    def some(self, launcher: Launcher, is_there: Callable[[LinearWeight], bool]) -> None:
        """Make what is missing of the matrices that are there."""
        self._maxima.find_some(launcher, is_there)
        self._kept.make_some(launcher, self._maxima, is_there)
