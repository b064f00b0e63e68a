"""What a layer keeps of keys and values: rows of numbers, or of codes with scales, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.kv_dtypes import TURNED_COLUMNS
from zse.backends.resident import KV_SCALE_COLUMNS
from zse.format.as_torch import bytes_from
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGEST_CODE = 127
NARROW_SCALE_COLUMNS = 16
"""Columns that share a scale in four bits."""
_LARGEST_NARROW_SCALE = 57344.0
"""Of those that the upper byte of a float16 holds."""
_MIDDLE_CODE = 8


@record
class KeptRows:
    """One layer's rows, in blocks."""

    numbers: torch.Tensor
    """[num_blocks, block_size, kept rows, head_dim]: keys, then values if there are any."""
    scales: torch.Tensor | None = None
    """Of codes: float16 [num_blocks, block_size, kept rows, groups of 32] beside int8, uint8 [...,
    groups of 16] beside uint8, where a byte of ``numbers`` has columns i and i + head_dim / 2."""

    @property
    def block_size(self) -> int:
        return self.numbers.shape[1]

    @property
    def is_narrow(self) -> bool:
        """Whether numbers have four bits."""
        return self.numbers.dtype is torch.uint8

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep float32 rows [tokens, kept rows, head_dim], each token at its slot."""
        if self.scales is not None:
            encode = packed if self.is_narrow else quantized
            rows, scales = encode(rows)
            self.scales.view(-1, *self.scales.shape[2:]).index_copy_(0, slots, scales)
        numbers = self.numbers.view(-1, *self.numbers.shape[2:])
        numbers.index_copy_(0, slots, rows.to(numbers.dtype))

    def read(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return float32 [tokens, kept rows, head_dim] of all tokens of some blocks."""
        numbers = self.numbers.index_select(0, blocks).flatten(0, 1)
        if self.scales is None:
            return numbers.float()
        scales = self.scales.index_select(0, blocks).flatten(0, 1)
        if self.is_narrow:
            return unpacked(numbers, scales)
        rows = numbers.float()
        return rows.mul_(widened(scales, rows.shape[-1]))

    def block_bytes(self) -> list[int]:
        """Return the bytes of a block in each of the tensors."""
        return [each[0].numel() * each.element_size() for each in self._tensors()]

    def taken(self, blocks: Sequence[int]) -> bytes:
        """Return the bytes of some blocks, tensor by tensor."""
        index = torch.tensor(blocks, dtype=torch.long)
        return b"".join(bytes_from(each.index_select(0, index)) for each in self._tensors())

    def put(self, blocks: Sequence[int], data: memoryview, first: int) -> None:
        """Put blocks of what ``taken`` gave, from the ``first`` of them on, into others."""
        index, end = torch.tensor(blocks, dtype=torch.long), 0
        num_blocks = len(data) // sum(self.block_bytes())
        for each, length in zip(self._tensors(), self.block_bytes(), strict=True):
            start, end = end, end + num_blocks * length
            own = bytearray(data[start + first * length : start + (first + len(blocks)) * length])
            rows = torch.frombuffer(own, dtype=each.dtype).view(len(blocks), *each.shape[1:])
            each.index_copy_(0, index, rows)

    def _tensors(self) -> list[torch.Tensor]:
        return [self.numbers] if self.scales is None else [self.numbers, self.scales]


def kept_rows(
    shape: tuple[int, ...],
    kv_dtype: torch.dtype,
    zeros: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
) -> KeptRows:
    """Return memory for rows, as ``zeros`` gives it.

    int8 means codes with scales, uint8 two of them a byte.
    """
    if kv_dtype is torch.uint8:
        half, groups = shape[-1] // 2, shape[-1] // NARROW_SCALE_COLUMNS
        return KeptRows(
            numbers=zeros((*shape[:-1], half), torch.uint8),
            scales=zeros((*shape[:-1], groups), torch.uint8),
        )
    if kv_dtype is not torch.int8:
        return KeptRows(numbers=zeros(shape, kv_dtype))
    scales = (*shape[:-1], -(-shape[-1] // KV_SCALE_COLUMNS))
    return KeptRows(numbers=zeros(shape, torch.int8), scales=zeros(scales, torch.float16))


def quantized(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [..., columns], and their float16 scales [..., groups of 32 columns].

    Scales are rounded to 16 bits before the codes are made, so that the codes fit them.
    """
    columns = rows.shape[-1]
    groups = -(-columns // KV_SCALE_COLUMNS)
    padded = torch.nn.functional.pad(rows, (0, groups * KV_SCALE_COLUMNS - columns))
    largest = padded.reshape(*rows.shape[:-1], groups, KV_SCALE_COLUMNS).abs().amax(-1)
    scales = (largest / _LARGEST_CODE).clamp(max=torch.finfo(torch.float16).max).half()
    wide = widened(scales, columns)
    codes = torch.where(wide > 0, rows / wide, 0.0).round_()
    return codes.clamp_(-_LARGEST_CODE, _LARGEST_CODE), scales


def packed(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of four bits, uint8 [..., columns / 2], and scales, uint8 [..., groups of 16].

    What is largest in a group has code 0, eight steps from the middle: of sixteen codes none is
    lost to symmetry. A scale is the upper byte of a float16, with its sign.
    """
    groups = rows.reshape(*rows.shape[:-1], -1, NARROW_SCALE_COLUMNS)
    highest, lowest = groups.amax(-1), groups.amin(-1)
    exact = torch.where(highest >= -lowest, highest, lowest) / -_MIDDLE_CODE
    exact = exact.clamp(-_LARGEST_NARROW_SCALE, _LARGEST_NARROW_SCALE)
    bits = exact.half().view(torch.int16).int() & 0xFFFF
    scales = ((bits + 0x80) >> 8).to(torch.uint8)
    wide = widened_narrow(scales)
    codes = groups * torch.where(wide != 0, 1.0 / wide, 0.0).unsqueeze(-1)
    codes = (codes.round_().clamp_(-_MIDDLE_CODE, _MIDDLE_CODE - 1) + _MIDDLE_CODE).byte()
    low, high = codes.flatten(-2).chunk(2, -1)
    return low | (high << 4), scales


def unpacked(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return float32 [..., columns] of what ``packed`` made."""
    joined = torch.cat((codes & 15, codes >> 4), -1).float() - _MIDDLE_CODE
    groups = joined.reshape(*joined.shape[:-1], -1, NARROW_SCALE_COLUMNS)
    return (groups * widened_narrow(scales).unsqueeze(-1)).flatten(-2)


def widened_narrow(scales: torch.Tensor) -> torch.Tensor:
    """Return the scales of four-bit codes as float32."""
    bits = scales.int() << 8
    return torch.where(bits > 0x7FFF, bits - 0x10000, bits).to(torch.int16).view(torch.half).float()


def turned(heads: torch.Tensor) -> torch.Tensor:
    """Return float32 [..., columns] with each run of 32 columns turned by Hadamard's signs.

    Lengths and products stay what they are; what one column has is spread over all of its run.
    """
    runs = heads.reshape(*heads.shape[:-1], -1, TURNED_COLUMNS)
    signs = runs.new_ones(1, 1)
    while signs.shape[0] < TURNED_COLUMNS:
        signs = torch.cat((torch.cat((signs, signs), 1), torch.cat((signs, -signs), 1)))
    return (runs @ (signs * TURNED_COLUMNS**-0.5)).flatten(-2)


def widened(scales: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the scale of each column, float32 [..., columns]."""
    return scales.float().repeat_interleave(KV_SCALE_COLUMNS, -1)[..., :columns]
