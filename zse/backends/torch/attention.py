"""Attention over a paged cache: each sequence gathers its own blocks and attends alone.

A sequence is computed with shapes that depend on its own length only, so the bits of its result do
not depend on the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.backends.torch.step import QUERY_TILE, causal_mask, window_mask

if TYPE_CHECKING:
    from zse.backends.torch.kept import KeptRows
    from zse.backends.torch.step import ChunkRows, Step
    from zse.models.layer_spec import AttentionSpec


def attend(
    step: Step,
    query: torch.Tensor,
    attention: AttentionSpec,
    sinks: torch.Tensor | None,
    layer: int,
) -> torch.Tensor:
    """Return attention of every chunk over its own sequence, float32 [tokens, heads * value_dim].

    Keys and values of the step's tokens are in the cache already; ``query`` is float32
    [tokens, heads, head_dim], rotated, and ``sinks`` float32 [heads].
    """
    source = layer if attention.kv_of_layer is None else attention.kv_of_layer
    group = step.cache.group_of[source]
    cache = _LayerCache(
        step.cache.layers[source],
        group,
        attention.num_kv_heads,
        None if attention.latent is None else attention.value_dim,
        attention.window,
        attention.scale,
        attention.softcap,
        sinks,
        attention.is_causal,
    )
    outputs = query.new_empty(*query.shape[:2], attention.value_dim)
    for chunk in step.chunks:
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
        if chunk.num_tokens == 1:
            outputs[rows] = _attend_one(cache, chunk, query[rows])
            continue
        for first in range(0, chunk.num_tokens, QUERY_TILE):
            end = min(first + QUERY_TILE, chunk.num_tokens)
            tile = slice(chunk.first_row + first, chunk.first_row + end)
            positions = (chunk.start_position + first, chunk.start_position + end)
            outputs[tile] = _attend_tile(step, cache, chunk, query[tile], positions)
    return outputs.view(query.shape[0], -1)


class _LayerCache(NamedTuple):
    """Where one layer's keys and values are, and how far back a query sees them."""

    pool: KeptRows
    group: int
    """Of layers, whose blocks a sequence has a table of."""
    num_kv_heads: int
    latent_columns: int | None
    """First columns of a key that are its value; None where values are kept."""
    window: int | None
    """Keys a query sees, its own included; None for all before it."""
    scale: float
    """Multiplies scores."""
    softcap: float | None
    sinks: torch.Tensor | None
    """float32 [heads]: one more logit of each, which has no value."""
    is_causal: bool
    """False: a query sees its whole chunk, which is a whole text."""

    def first_key_of(self, query: int) -> int:
        """Return the first position that the query at a position sees."""
        return 0 if self.window is None else max(0, query + 1 - self.window)

    @property
    def is_plain(self) -> bool:
        """Whether scores go through the softmax as they are."""
        return self.softcap is None and self.sinks is None

    def softmax(self, scores: torch.Tensor) -> torch.Tensor:
        """Return weights [kv_heads, repeats, queries, keys] of scores, -inf what is not seen."""
        if self.sinks is None:
            return torch.softmax(scores, -1)
        sinks = self.sinks.view(self.num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat((scores, sinks), -1), -1)[..., :-1]

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        cap = self.softcap
        return scores if cap is None else torch.tanh(scores / cap) * cap

    def gather(self, chunk: ChunkRows, first: int, end: int) -> tuple[torch.Tensor, ...]:
        """Return keys and values [kv_heads, end - first, columns] of positions first to end."""
        block_size = self.pool.block_size
        first_block = first // block_size
        used = chunk.blocks[self.group][first_block : -(-end // block_size)]
        offset = first - first_block * block_size
        joined = self.pool.read(used)[offset : offset + end - first].transpose(0, 1)
        if self.latent_columns is not None:
            return joined, joined[..., : self.latent_columns]
        return joined[: self.num_kv_heads], joined[self.num_kv_heads :]


def _attend_one(cache: _LayerCache, chunk: ChunkRows, query: torch.Tensor) -> torch.Tensor:
    """Return [1, heads, value_dim] for one token; everything gathered is visible to it."""
    first = cache.first_key_of(chunk.start_position)
    keys, values = cache.gather(chunk, first, chunk.start_position + 1)
    head_dim = query.shape[2]
    grouped = (query * cache.scale).view(cache.num_kv_heads, -1, head_dim)
    scores = cache.capped(torch.bmm(grouped, keys.transpose(1, 2)))
    weights = cache.softmax(scores.unsqueeze(2)).squeeze(2)
    return torch.bmm(weights, values).view(1, -1, values.shape[2])


def _attend_tile(
    step: Step,
    cache: _LayerCache,
    chunk: ChunkRows,
    query: torch.Tensor,
    positions: tuple[int, int],
) -> torch.Tensor:
    """Return [queries, heads, value_dim] for consecutive queries of one chunk."""
    first_query, end = positions
    first_key = cache.first_key_of(first_query)
    end_key = end if cache.is_causal else chunk.start_position + chunk.num_tokens
    keys, values = cache.gather(chunk, first_key, end_key)
    mask = _mask_of(step, cache, (first_query, end, first_key, end_key))
    count, heads, head_dim = query.shape
    repeats = heads // cache.num_kv_heads
    grouped = query.view(count, cache.num_kv_heads, repeats, head_dim).permute(1, 2, 0, 3)
    if not cache.is_plain:
        scores = cache.capped(grouped @ keys.unsqueeze(1).transpose(2, 3) * cache.scale) + mask
        attended = cache.softmax(scores) @ values.unsqueeze(1)
        return attended.permute(2, 0, 1, 3).reshape(count, heads, -1)
    attended = torch.nn.functional.scaled_dot_product_attention(
        grouped,
        keys.unsqueeze(1).expand(-1, repeats, -1, -1),
        values.unsqueeze(1).expand(-1, repeats, -1, -1),
        attn_mask=mask,
        scale=cache.scale,
    )
    return attended.permute(2, 0, 1, 3).reshape(count, heads, -1)


def _mask_of(step: Step, cache: _LayerCache, bounds: tuple[int, int, int, int]) -> torch.Tensor:
    """Return what is added to scores; ``bounds`` are those of the queries, then of the keys."""
    first_query, end, first_key, end_key = bounds
    if not cache.is_causal:
        return window_mask((first_query, end), (first_key, end_key), cache.window)
    key = (first_query, end, first_key, cache.window or 0)
    mask = step.masks.get(key)
    if mask is None:
        mask = step.masks[key] = causal_mask(first_query, end, first_key, cache.window)
    return mask
