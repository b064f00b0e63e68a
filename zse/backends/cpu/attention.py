"""Attention over a paged cache: each sequence gathers its own blocks and attends alone.

A sequence is computed with shapes that depend on its own length only, so the bits of its result do
not depend on the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.cpu.step import QUERY_TILE, causal_mask

if TYPE_CHECKING:
    from zse.backends.cpu.step import ChunkRows, CpuStep


def attend(
    step: CpuStep, query: torch.Tensor, layer: int, num_kv_heads: int, window: int | None
) -> torch.Tensor:
    """Return attention of every chunk over its own sequence.

    Args:
        step: The step; keys and values of its tokens are already in the cache.
        query: float32 [tokens, heads, head_dim], rotated.
        layer: Whose cache is read.
        num_kv_heads: Key and value heads.
        window: Positions a query sees, its own included; None for all.

    Returns:
        float32 [tokens, heads * head_dim].
    """
    pool = step.cache[layer]
    outputs = torch.empty_like(query)
    for chunk in step.chunks:
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
        if chunk.num_tokens == 1:
            outputs[rows] = _attend_one(pool, chunk, query[rows], num_kv_heads, window)
            continue
        for first in range(0, chunk.num_tokens, QUERY_TILE):
            end = min(first + QUERY_TILE, chunk.num_tokens)
            tile = slice(chunk.first_row + first, chunk.first_row + end)
            positions = (chunk.start_position + first, chunk.start_position + end)
            outputs[tile] = _attend_tile(
                step, pool, chunk, query[tile], positions, num_kv_heads, window
            )
    return outputs.view(query.shape[0], -1)


def _gather(
    pool: torch.Tensor, blocks: torch.Tensor, first: int, end: int, num_kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [kv_heads, end - first, head_dim] of positions first to end."""
    block_size = pool.shape[1]
    first_block = first // block_size
    used = blocks[first_block : -(-end // block_size)]
    joined = pool.index_select(0, used).view(-1, pool.shape[2], pool.shape[3])
    offset = first - first_block * block_size
    joined = joined[offset : offset + end - first].float().transpose(0, 1)
    return joined[:num_kv_heads], joined[num_kv_heads:]


def _attend_one(
    pool: torch.Tensor,
    chunk: ChunkRows,
    query: torch.Tensor,
    num_kv_heads: int,
    window: int | None,
) -> torch.Tensor:
    """Return [1, heads, head_dim] for one token; everything gathered is visible to it."""
    end = chunk.start_position + 1
    first = 0 if window is None else max(0, end - window)
    keys, values = _gather(pool, chunk.blocks, first, end, num_kv_heads)
    head_dim = query.shape[2]
    grouped = (query * head_dim**-0.5).view(num_kv_heads, -1, head_dim)
    weights = torch.softmax(torch.bmm(grouped, keys.transpose(1, 2)), -1)
    return torch.bmm(weights, values).view(1, -1, head_dim)


def _attend_tile(
    step: CpuStep,
    pool: torch.Tensor,
    chunk: ChunkRows,
    query: torch.Tensor,
    positions: tuple[int, int],
    num_kv_heads: int,
    window: int | None,
) -> torch.Tensor:
    """Return [queries, heads, head_dim] for consecutive queries of one chunk."""
    first_query, end = positions
    first_key = 0 if window is None else max(0, first_query + 1 - window)
    keys, values = _gather(pool, chunk.blocks, first_key, end, num_kv_heads)
    key = (first_query, end, first_key, window or 0)
    mask = step.masks.get(key)
    if mask is None:
        mask = step.masks[key] = causal_mask(first_query, end, first_key, window)
    count, heads, head_dim = query.shape
    repeats = heads // num_kv_heads
    grouped = query.view(count, num_kv_heads, repeats, head_dim).permute(1, 2, 0, 3)
    shape = (num_kv_heads, repeats, end - first_key, head_dim)
    attended = torch.nn.functional.scaled_dot_product_attention(
        grouped,
        keys.unsqueeze(1).expand(shape),
        values.unsqueeze(1).expand(shape),
        attn_mask=mask,
    )
    return attended.permute(2, 0, 1, 3).reshape(count, heads, head_dim)
