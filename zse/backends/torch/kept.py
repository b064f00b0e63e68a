"""What a layer keeps of keys and values: rows of numbers, or of codes with scales, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.resident import KV_SCALE_COLUMNS
from zse.format.as_torch import bytes_from
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGEST_CODE = 127


@record
class KeptRows:
    """One layer's rows, in blocks."""

    numbers: torch.Tensor
    """[num_blocks, block_size, kept rows, head_dim]: keys, then values if there are any."""
    scales: torch.Tensor | None = None
    """float16 [num_blocks, block_size, kept rows, groups] where ``numbers`` are codes in int8."""

    @property
    def block_size(self) -> int:
        return self.numbers.shape[1]

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep float32 rows [tokens, kept rows, head_dim], each token at its slot."""
        if self.scales is not None:
            rows, scales = quantized(rows)
            self.scales.view(-1, *self.scales.shape[2:]).index_copy_(0, slots, scales)
        numbers = self.numbers.view(-1, *self.numbers.shape[2:])
        numbers.index_copy_(0, slots, rows.to(numbers.dtype))

    def read(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return float32 [tokens, kept rows, head_dim] of all tokens of some blocks."""
        rows = self.numbers.index_select(0, blocks).flatten(0, 1).float()
        if self.scales is None:
            return rows
        scales = self.scales.index_select(0, blocks).flatten(0, 1)
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
    """Return memory for rows, as ``zeros`` gives it; int8 means codes with scales."""
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


def widened(scales: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the scale of each column, float32 [..., columns]."""
    return scales.float().repeat_interleave(KV_SCALE_COLUMNS, -1)[..., :columns]
