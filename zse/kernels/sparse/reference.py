"""Reference of sparse attention: all scores, without those of pairs that are not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def sparse_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return attention in float32, [batch, heads, length, head_dim].

    Args:
        query: [batch, heads, length, head_dim].
        key: [batch, kv_heads, length, head_dim]; each for ``heads / kv_heads`` heads of queries.
        value: As ``key``.
        seen: bool [length, length]: a row a query, a column a key.
        scale: Multiplies products.
    """
    group = query.shape[1] // key.shape[1]
    keys, values = (one.float().repeat_interleave(group, 1) for one in (key, value))
    scores = query.float() @ keys.transpose(2, 3) * scale
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values
