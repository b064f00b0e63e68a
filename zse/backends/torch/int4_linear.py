"""INT4 weights times float32 rows, without dequantizing for a single row.

torch's own packed INT4 product takes bfloat16 inputs and scales and returns bfloat16, which is
1000 times coarser than float32; in float32 it is not vectorized. FBGEMM's 4-bit embedding bag is
vectorized, exact and float32: a bag sums table rows times weights. With the matrix transposed (a
table row holds one column of a tile of the matrix, a bag is one quantization group) it returns the
sums that the group scales then multiply.
"""

from __future__ import annotations

from functools import cache

import torch

from zse.backends.torch.forms import INT4_HEADER_BYTES, INT4_TILE_ROWS
from zse.format.as_torch import split_scale_zero, unpack_nibbles, widen_codes


class Int4Linear:
    """Weights [N, K], 4-bit, with float16 scale and -zero*scale per group of G along K.

    Codes of fewer ``bits`` become four-bit ones: this packing has no others.

    Inside a tile the matrix's rows are ordered so that byte b of a table row holds row b in its
    low nibble and row b + INT4_TILE_ROWS/2 in its high one. The bag returns them alternating.
    """

    def __init__(
        self, qweight: torch.Tensor, scale_zero: torch.Tensor, group_size: int, bits: int = 4
    ) -> None:
        self._rows, self._columns = qweight.shape[0], scale_zero.shape[1] * group_size
        self._bits = bits
        self._group_size = group_size
        self._tiles = -(-self._rows // INT4_TILE_ROWS)
        self._groups = self._columns // group_size
        self._table = self._pack(qweight)
        # float16 as in the file: float32 copies would cost a tenth of the weights' size.
        self._scale, self._minus_zero_scale = self._pack_scales(scale_zero)
        self._indices, self._offsets = _bags(self._tiles * self._columns, group_size)

    def each_row(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.shape[0] == 1:
            return self._multiply_one(inputs)
        return torch.cat([self._multiply_one(row) for row in torch.split(inputs, 1)])

    def all_rows(self, inputs: torch.Tensor) -> torch.Tensor:
        """Dequantize one tile at a time and multiply it with all rows [M, K]."""
        if inputs.shape[0] <= 2:
            return self.each_row(inputs)
        outputs = torch.empty(inputs.shape[0], self._tiles * INT4_TILE_ROWS)
        weights = torch.empty(self._groups, self._group_size, INT4_TILE_ROWS)
        for tile in range(self._tiles):
            self._dequantize_tile(tile, weights)
            start = tile * INT4_TILE_ROWS
            torch.mm(
                inputs,
                weights.view(self._columns, INT4_TILE_ROWS),
                out=outputs[:, start : start + INT4_TILE_ROWS],
            )
        return outputs[:, : self._rows].contiguous()

    def _multiply_one(self, row: torch.Tensor) -> torch.Tensor:
        sums = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(
            self._table, self._indices, self._offsets, False, 0, False,
            row.expand(self._tiles, self._columns).reshape(-1), None, False,
        ).view(self._tiles, self._groups, INT4_TILE_ROWS)  # fmt: skip
        row_sums = row.view(self._groups, self._group_size).sum(1).unsqueeze(1)
        sums.mul_(self._scale).add_(self._minus_zero_scale * row_sums)
        outputs = sums.sum(1).view(self._tiles, INT4_TILE_ROWS // 2, 2).transpose(1, 2)
        return outputs.reshape(1, -1)[:, : self._rows]

    def _dequantize_tile(self, tile: int, weights: torch.Tensor) -> None:
        """Fill ``weights`` [groups, G, INT4_TILE_ROWS] with float32 values."""
        half = INT4_TILE_ROWS // 2
        start = tile * self._columns
        octets = self._table[start : start + self._columns, :half]
        octets = octets.reshape(self._groups, self._group_size, half)
        for parity, codes in enumerate((octets & 0x0F, octets >> 4)):
            scale = self._scale[tile, :, parity::2].float().unsqueeze(1)
            minus_zero_scale = self._minus_zero_scale[tile, :, parity::2].float().unsqueeze(1)
            target = weights[:, :, parity * half : (parity + 1) * half]
            torch.mul(codes, scale, out=target)
            target.add_(minus_zero_scale)

    def _pack(self, qweight: torch.Tensor) -> torch.Tensor:
        half = INT4_TILE_ROWS // 2
        table = torch.empty(
            self._tiles * self._columns, half + INT4_HEADER_BYTES, dtype=torch.uint8
        )
        # FBGEMM's table rows end with their own float16 scale and bias: 1 and 0.
        table[:, half:] = torch.tensor([1.0, 0.0], dtype=torch.float16).view(torch.uint8)
        for tile in range(self._tiles):
            stored = qweight[tile * INT4_TILE_ROWS : (tile + 1) * INT4_TILE_ROWS]
            packed = widen_codes(stored, self._bits)
            codes = torch.zeros(INT4_TILE_ROWS, self._columns, dtype=torch.uint8)
            codes[: packed.shape[0]] = unpack_nibbles(packed, self._group_size).view(
                packed.shape[0], self._columns
            )
            octets = codes[:half] | (codes[half:] << 4)
            table[tile * self._columns : (tile + 1) * self._columns, :half] = octets.t()
        return table

    def _pack_scales(self, scale_zero: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and -zero*scale, float16 [tiles, groups, INT4_TILE_ROWS], alternating."""
        packed = []
        for values in split_scale_zero(scale_zero):
            padded = torch.zeros(self._tiles * INT4_TILE_ROWS, self._groups, dtype=torch.float16)
            padded[: self._rows] = values.half()
            halves = padded.view(self._tiles, 2, INT4_TILE_ROWS // 2, self._groups)
            packed.append(
                halves.permute(0, 3, 2, 1).reshape(self._tiles, self._groups, INT4_TILE_ROWS)
            )
        return packed[0], packed[1]


@cache
def _bags(count: int, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each table row's index and each bag's first; matrices of one shape share them."""
    indices = torch.arange(count, dtype=torch.int32)
    return indices, torch.arange(0, count, group_size, dtype=torch.int32)
