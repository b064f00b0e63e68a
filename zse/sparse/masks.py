"""The mask of a pattern: dense, by blocks in compressed rows, and as coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.errors import UsageError
from zse.records import record
from zse.sparse.layout import Blocks, Seen

if TYPE_CHECKING:
    from zse.sparse.pattern import SparsePattern


@record
class BlockMask:
    """Blocks of keys that each block of queries sees: rows compressed, those seen whole first.

    Args:
        pattern: What it was made of.
        length: Tokens of the text.
        row_starts: int32 [blocks + 1], where a row's blocks begin.
        masked_starts: int32 [blocks], where those begin of which some pairs are not seen.
        columns: int32 [seen blocks].
        kinds: int32 [seen blocks], a ``Seen`` each.
    """

    pattern: SparsePattern
    length: int
    is_causal: bool
    row_starts: torch.Tensor
    masked_starts: torch.Tensor
    columns: torch.Tensor
    kinds: torch.Tensor

    @property
    def density(self) -> float:
        """Blocks that are seen, of all there are."""
        num_rows = len(self.masked_starts)
        return len(self.columns) / num_rows**2

    def row(self, index: int) -> list[tuple[int, Seen]]:
        """Return one row's blocks and what is seen of them."""
        first, last = self.row_starts[index : index + 2].tolist()
        kinds = self.kinds[first:last].tolist()
        return [
            (column, Seen(kind))
            for column, kind in zip(self.columns[first:last].tolist(), kinds, strict=True)
        ]


def block_mask(
    pattern: SparsePattern, length: int, *, is_causal: bool = True, device: str = "cpu"
) -> BlockMask:
    """Make the mask of a text of ``length`` tokens by blocks.

    Raises:
        UsageError: There is no such text.
    """
    if length < 1:
        raise UsageError(f"a text of {length} tokens has no mask", hint="Give one token or more.")
    row_starts = [0]
    masked_starts: list[int] = []
    columns: list[int] = []
    kinds: list[Seen] = []
    for row in Blocks(pattern=pattern, length=length, is_causal=is_causal).rows():
        whole = [column for column, kind in row.items() if kind is Seen.ALL]
        masked = [column for column, kind in row.items() if kind is not Seen.ALL]
        masked_starts.append(len(columns) + len(whole))
        columns += whole + masked
        kinds += [row[column] for column in whole + masked]
        row_starts.append(len(columns))
    tensors = (
        torch.tensor(numbers, dtype=torch.int32, device=device)
        for numbers in (row_starts, masked_starts, columns, kinds)
    )
    return BlockMask(
        pattern=pattern,
        length=length,
        is_causal=is_causal,
        **dict(zip(("row_starts", "masked_starts", "columns", "kinds"), tensors, strict=True)),
    )


def seen_pairs(
    mask: BlockMask, queries: torch.Tensor, keys: torch.Tensor, kind: torch.Tensor | Seen
) -> torch.Tensor:
    """Return which pairs are seen, bool [queries, keys], of blocks of some kind.

    Args:
        queries: Positions [Q].
        keys: Positions [K].
        kind: A ``Seen``, or one for each key [K].
    """
    pattern = mask.pattern
    distance = queries[:, None] - keys[None, :]
    inside = (keys < mask.length)[None, :] & (queries < mask.length)[:, None]
    is_global = (keys < pattern.num_global_start)[None, :].expand_as(distance)
    if mask.is_causal:
        inside = inside & (distance >= 0)
    else:
        is_global = is_global | (queries < pattern.num_global_start)[:, None]
    ruled = (distance.abs() < pattern.window_size) | is_global
    return inside & (ruled | torch.as_tensor(kind != Seen.RULED, device=keys.device))


def coo_mask(mask: BlockMask) -> torch.Tensor:
    """Return the pairs that are seen as coordinates: a sparse bool tensor [length, length]."""
    size = mask.pattern.block_size
    device = mask.columns.device
    offsets = torch.arange(size, device=device)
    found = []
    for row in range(len(mask.masked_starts)):
        for column, kind in mask.row(row):
            seen = seen_pairs(mask, row * size + offsets, column * size + offsets, kind)
            origin = torch.tensor([[row * size], [column * size]], device=device)
            found.append(seen.nonzero().T + origin)
    indices = torch.cat(found, 1)
    values = torch.ones(indices.shape[1], dtype=torch.bool, device=device)
    return torch.sparse_coo_tensor(
        indices, values, (mask.length, mask.length), check_invariants=True
    ).coalesce()


def dense_mask(mask: BlockMask) -> torch.Tensor:
    """Return which pairs are seen, bool [length, length]: a row a query, a column a key."""
    return coo_mask(mask).to_dense()


def count_pairs(mask: BlockMask) -> int:
    """Return how many pairs of a query and a key are seen."""
    size = mask.pattern.block_size
    device = mask.columns.device
    offsets = torch.arange(size, device=device)
    starts, num_rows = mask.row_starts.tolist(), len(mask.masked_starts)
    total = 0
    for row in range(num_rows):
        columns = mask.columns[starts[row] : starts[row + 1]]
        kinds = mask.kinds[starts[row] : starts[row + 1]]
        keys = (columns[:, None] * size + offsets).flatten()
        kinds = kinds.repeat_interleave(size)
        total += int(seen_pairs(mask, row * size + offsets, keys, kinds).sum())
    return total
