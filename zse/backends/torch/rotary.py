"""Rotary cosines and sines, computed once for each position.

They are made a fixed number of positions at a time: vectorized and scalar trigonometry differ in
the last bit, and which one a position gets must not depend on the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from zse.models.rope import RoPESpec

_POSITIONS_AT_ONCE = 1024


class RotaryTable:
    """Cosines and signed sines of positions, grown as longer sequences appear."""

    def __init__(self, rope: RoPESpec) -> None:
        self._inverse_frequencies = torch.tensor(rope.inverse_frequencies(), dtype=torch.float32)
        self._factor = rope.factor
        width = rope.rotary_dim // 2
        self._cosines = torch.empty(0, 1, 1, width)
        self._sines = torch.empty(0, 1, 2, width)

    def rows(self, positions: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines [tokens, 1, 1, D/2] and sines (-s, +s) [tokens, 1, 2, D/2].

        ``end`` is larger than every position.
        """
        while self._cosines.shape[0] < end:
            self._grow()
        return self._cosines.index_select(0, positions), self._sines.index_select(0, positions)

    def _grow(self) -> None:
        first = self._cosines.shape[0]
        positions = torch.arange(first, first + _POSITIONS_AT_ONCE, dtype=torch.float32)
        angles = torch.outer(positions, self._inverse_frequencies)
        cosines, sines = angles.cos() * self._factor, angles.sin() * self._factor
        shape = (_POSITIONS_AT_ONCE, 1, 1, -1)
        signed = torch.stack((-sines, sines), 1).unsqueeze(1)
        self._cosines = torch.cat((self._cosines, cosines.view(shape)))
        self._sines = torch.cat((self._sines, signed))


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim]: of its first columns i turns with i + half of them."""
    width = 2 * cosines.shape[-1]
    turning, rest = heads[..., :width], heads[..., width:]
    halves = turning.reshape(heads.shape[0], heads.shape[1], 2, -1)
    rotated = halves * cosines
    rotated.add_(halves.flip(2).mul_(sines))
    joined = rotated.view(turning.shape)
    return joined if not rest.shape[-1] else torch.cat((joined, rest), -1)
