"""Matrices that multiply float32 rows without ever being dequantized as a whole.

Every class computes ``x @ W^T`` in float32 precision and offers two ways to do it. ``each_row``
promises that a row's result has the same bits whatever the other rows are: decode steps use it,
so a greedy answer cannot depend on the rest of the batch. ``all_rows`` is the fastest way for many
rows: prompts use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from zse.format.schemes import PACKED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TILE_BYTES = 4 * 1024 * 1024
"""Bytes of float32 weights that exist at one time: about what the second-level cache holds."""


class Linear(Protocol):
    """A matrix of N rows and K columns."""

    def each_row(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply [M, K] float32; the bits of a row's result depend on that row alone."""

    def all_rows(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply [M, K] float32 the fastest way; returns [M, N] float32."""


class DenseLinear:
    """Float32 weights [N, K] in memory; for float32 files and for small 16-bit models."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._transposed = weight.t()

    def each_row(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply row by row with one kernel of one shape."""
        if inputs.shape[0] == 1:
            return torch.mm(inputs, self._transposed)
        return torch.cat([torch.mm(row, self._transposed) for row in torch.split(inputs, 1)])

    def all_rows(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.mm(inputs, self._transposed)


class TiledLinear:
    """Weights kept as they are in the mapped file, made float32 a few rows at a time.

    Args:
        rows: N.
        columns: K.
        tile_of: Returns float32 weights [stop - start, K] for rows start to stop.
        arrange: Reorders the columns of the inputs to the order of ``tile_of``.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        tile_of: Callable[[int, int], torch.Tensor],
        arrange: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._rows = rows
        self._tile_rows = max(16, TILE_BYTES // (4 * columns))
        self._tile_of = tile_of
        self._arrange = arrange

    def each_row(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._multiply(inputs, one_at_a_time=True)

    def all_rows(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._multiply(inputs, one_at_a_time=False)

    def _multiply(self, inputs: torch.Tensor, *, one_at_a_time: bool) -> torch.Tensor:
        if self._arrange is not None:
            inputs = self._arrange(inputs)
        outputs = torch.empty(inputs.shape[0], self._rows)
        rows = torch.split(inputs, 1) if one_at_a_time else (inputs,)
        for start in range(0, self._rows, self._tile_rows):
            stop = min(start + self._tile_rows, self._rows)
            transposed = self._tile_of(start, stop).t()
            parts = [torch.mm(row, transposed) for row in rows]
            outputs[:, start:stop] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return outputs


def plain_tiles(data: torch.Tensor) -> TiledLinear:
    """Return the tiled form of float16, bfloat16 or float32 weights [N, K]."""
    return TiledLinear(data.shape[0], data.shape[1], lambda start, stop: data[start:stop].float())


def int8_tiles(qweight: torch.Tensor, scale: torch.Tensor) -> TiledLinear:
    """Return the tiled form of int8 weights [N, K] with a float32 scale per row [N]."""
    scale = scale.unsqueeze(1)

    def tile_of(start: int, stop: int) -> torch.Tensor:
        return qweight[start:stop].float().mul_(scale[start:stop])

    return TiledLinear(qweight.shape[0], qweight.shape[1], tile_of)


def table_tiles(
    qweight: torch.Tensor,
    scales: torch.Tensor,
    codes: Sequence[float],
    widen: Callable[[torch.Tensor], torch.Tensor],
) -> TiledLinear:
    """Return the tiled form of NF4, NL4 and MXFP4 weights: values of a table times a group's scale.

    A byte is looked up once and yields both of its weights. They belong to columns half a group
    apart (16 where groups are shorter), so the inputs are put into that order instead of the
    weights into theirs.

    Args:
        qweight: uint8 [N, K/2].
        scales: [N, K/G], as the file has them.
        codes: The 16 values.
        widen: Returns scales as float32.
    """
    rows, columns = qweight.shape[0], qweight.shape[1] * 2
    group_size = columns // scales.shape[1]
    packed = max(group_size, PACKED_COLUMNS)
    members = packed // group_size  # groups that are packed together, each in half a byte
    pairs_of_bytes = [[codes[b & 15], codes[b >> 4]] for b in range(256)]
    table = torch.tensor(pairs_of_bytes, dtype=torch.float32)

    def tile_of(start: int, stop: int) -> torch.Tensor:
        pairs = torch.nn.functional.embedding(qweight[start:stop].int(), table)
        grouped = pairs.view(stop - start, columns // packed, packed // 2, 2)
        factors = widen(scales[start:stop]).view(stop - start, columns // packed, 1, members)
        return grouped.mul_(factors).view(stop - start, columns)

    def arrange(inputs: torch.Tensor) -> torch.Tensor:
        halves = inputs.view(inputs.shape[0], -1, 2, packed // 2)
        return halves.transpose(2, 3).reshape(inputs.shape)

    return TiledLinear(rows, columns, tile_of, arrange)
