"""A paged key and value cache of CPU tensors, for tests of kernels; import ``interpreted`` first."""

from __future__ import annotations

import torch

from zse.backends.torch.kept import packed, unpacked
from zse.kernels.layout import BlockTables, HeadShape, PagedCache

BLOCK = 32


class Pages:
    """Blocks of one layer, filled with what nobody wrote: not-a-number, or large codes.

    ``narrow`` pages are quantized ones of four bits.
    """

    def __init__(
        self,
        blocks: int,
        kv_heads: int,
        head_dim: int,
        *,
        quantized: bool,
        narrow: bool = False,
    ) -> None:
        shape = (blocks, kv_heads, BLOCK, head_dim)
        quantized = quantized or narrow
        self.quantized, self.narrow, self.head_dim = quantized, narrow, head_dim
        self.parts = [torch.zeros(0), torch.zeros(0)]
        self.scales = [torch.zeros(0), torch.zeros(0)]
        for index in (0, 1):
            if narrow:
                packed_shape = (*shape[:3], head_dim // 2)
                self.parts[index] = torch.full(packed_shape, 255, dtype=torch.uint8)
                # The upper byte of what is no number.
                scale_shape = (*shape[:3], head_dim // 16)
                self.scales[index] = torch.full(scale_shape, 0x7E, dtype=torch.uint8)
            elif quantized:
                self.parts[index] = torch.full(shape, 127, dtype=torch.int8)
                scale_shape = (*shape[:3], head_dim // 32)
                self.scales[index] = torch.full(scale_shape, float("nan"), dtype=torch.float16)
            else:
                self.parts[index] = torch.full(shape, float("nan"), dtype=torch.bfloat16)
        self.cache = PagedCache(
            keys=self.parts[0].data_ptr(),
            values=self.parts[1].data_ptr(),
            key_scales=self.scales[0].data_ptr() if quantized else 0,
            value_scales=self.scales[1].data_ptr() if quantized else 0,
            is_narrow=narrow,
        )

    def write(self, blocks: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write float32 [tokens, kv_heads, head_dim] from position 0 of a sequence."""
        for position in range(keys.shape[0]):
            block, token = blocks[position // BLOCK], position % BLOCK
            for index, part in enumerate((keys[position], values[position])):
                if self.narrow:
                    codes, scale = packed(part)
                    self.parts[index][block, :, token] = codes
                    self.scales[index][block, :, token] = scale
                elif self.quantized:
                    groups = part.unflatten(-1, (-1, 32))
                    scale = (groups.abs().amax(-1) / 127.0).half()
                    codes = torch.round(groups / scale.float().unsqueeze(-1)).flatten(-2)
                    self.parts[index][block, :, token] = codes.clamp(-127, 127).to(torch.int8)
                    self.scales[index][block, :, token] = scale
                else:
                    self.parts[index][block, :, token] = part.bfloat16()

    def read(self, blocks: list[int], tokens: int) -> torch.Tensor:
        """Return float32 [tokens, 2 * kv_heads, head_dim]: keys, then values, as stored."""
        halves = []
        for part, scales in zip(self.parts, self.scales, strict=True):
            wide = part.float()
            if self.narrow:
                wide = unpacked(part, scales)
            elif self.quantized:
                wide = (wide.unflatten(-1, (-1, 32)) * scales.float().unsqueeze(-1)).flatten(-2)
            joined = wide[blocks].transpose(1, 2).flatten(0, 1)
            halves.append(joined[:tokens])
        return torch.cat(halves, 1)


class Tables:
    """Block tables of some sequences; entries that nobody may follow are far outside."""

    def __init__(self, tables: list[list[int]], stride: int = 0) -> None:
        self.lists = tables
        stride = stride or max(map(len, tables))
        self.tensor = torch.full((len(tables), stride), 2**30, dtype=torch.int32)
        for row, blocks in enumerate(tables):
            self.tensor[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self.tables = BlockTables(address=self.tensor.data_ptr(), stride=stride)


def leave_behind(pages: Pages, tables: Tables, first_seen: list[int]) -> None:
    """Let each sequence have only the blocks from a position on, as where a window has moved.

    The block before stands for zeros, the last of the pages; nobody may follow those before it.
    """
    counts = [seen // BLOCK for seen in first_seen]
    left = [b for blocks, n in zip(tables.lists, counts, strict=True) for b in blocks[:n]]
    for part in (*pages.parts, *pages.scales):
        if part.numel():
            part[left] = {torch.int8: 127, torch.uint8: 0x7E}.get(part.dtype, float("nan"))
            part[-1] = 0
    for row, count in enumerate(counts):
        tables.tensor[row, :count] = 2**30
        if count:
            tables.tensor[row, count - 1] = pages.parts[0].shape[0] - 1


def angles(max_positions: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inverse frequencies [D / 2], and the table of cosines and sines [P, D]."""
    frequencies = 1000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    turns = torch.arange(max_positions).float()[:, None] * frequencies
    return frequencies, torch.cat((turns.cos(), turns.sin()), 1)


def paired(head_dim: int, rotary_dim: int) -> list[int]:
    """Return the columns of a head in the order in which kernels keep those of q and k."""
    half, turning = head_dim // 2, rotary_dim // 2
    first = [*range(turning), *range(rotary_dim, half + turning)]
    return [*first, *range(turning, rotary_dim), *range(half + turning, head_dim)]


def random_factors(kv_heads: int, head_dim: int, rotary_dim: int) -> torch.Tensor:
    """Return powers of two [kv_heads, D], the same for both columns of each pair that turns."""
    factors = torch.exp2(torch.randint(0, 3, (kv_heads, head_dim)).float())
    half = rotary_dim // 2
    factors[:, half:rotary_dim] = factors[:, :half]
    return factors


def usual_heads(joined: torch.Tensor, shape: HeadShape, value_epsilon: float = 0) -> torch.Tensor:
    """Return q, k and v [T, heads, D] of the heads of a joined product, zeros for what it lacks."""
    kv = shape.kv_heads
    keys = values = joined.new_zeros(joined.shape[0], kv, shape.head_dim)
    if shape.stores:
        first = shape.first_head("key")
        values = keys = joined[:, first : first + kv]
    if "value" in shape.parts:
        values = joined[:, shape.first_head("value") :]
    if value_epsilon:
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + value_epsilon)
    return torch.cat((joined[:, : shape.num_heads], keys, values), 1)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error over the largest value."""
    return float((found.float() - expected).abs().max() / expected.abs().max())
