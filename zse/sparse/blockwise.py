"""Attention by blocks in plain torch: on any device, with gradients, in the memory of one block."""

from __future__ import annotations

import torch

from zse.sparse.masks import BlockMask, seen_pairs


def attend_blockwise(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: BlockMask,
    scale: float,
) -> torch.Tensor:
    """Return attention over the pairs of a mask, [batch, heads, length, head_dim].

    Scores of a block of queries with all keys that it sees are held at a time, in float32.

    Args:
        query: [batch, heads, length, head_dim].
        key: [batch, kv_heads, length, head_dim]; each for ``heads / kv_heads`` heads of queries.
        value: As ``key``.
        mask: Of a text of ``length`` tokens.
        scale: Multiplies products.
    """
    size = mask.pattern.block_size
    batch, heads, length, head_dim = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, length, head_dim)
    starts = mask.row_starts.tolist()
    offsets = torch.arange(size, device=query.device)
    found = []
    for row in range(len(starts) - 1):
        queries = torch.arange(row * size, min((row + 1) * size, length), device=query.device)
        seen_blocks = slice(starts[row], starts[row + 1])
        keys = (mask.columns[seen_blocks, None] * size + offsets).flatten()
        kinds = mask.kinds[seen_blocks].repeat_interleave(size)
        seen = seen_pairs(mask, queries, keys, kinds)
        keys = keys.clamp(max=length - 1)
        scores = torch.einsum(
            "bgqnd,bgkd->bgqnk", grouped[..., queries, :].transpose(2, 3).float(),
            key[:, :, keys].float(),
        )  # fmt: skip
        scores = (scores * scale).masked_fill(~seen[:, None, :], float("-inf"))
        weights = scores.softmax(-1).to(value.dtype)
        attended = torch.einsum("bgqnk,bgkd->bgqnd", weights, value[:, :, keys])
        found.append(attended.transpose(2, 3).reshape(batch, heads, len(queries), head_dim))
    return torch.cat(found, 2)
