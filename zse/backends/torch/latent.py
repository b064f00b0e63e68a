"""Latent attention: queries as wide as what is kept, and values of what attention returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.torch.rotary import rotate

if TYPE_CHECKING:
    from zse.backends.handles import LayerWeights
    from zse.backends.torch.step import Step
    from zse.models.layer_spec import AttentionSpec


def absorb_keys(
    step: Step, qkv: torch.Tensor, attention: AttentionSpec, weights: LayerWeights, layer: int
) -> torch.Tensor:
    """Keep each token's latent and its key that turns; return queries for them.

    Returns:
        float32 [tokens, heads, rank + columns that turn].
    """
    latent, parts, rope = attention.latent, weights.latent, attention.rope
    assert latent is not None
    assert parts is not None
    assert rope is not None
    own, kept, key = torch.split(
        qkv, [qkv.shape[1] - attention.head_dim, latent.rank, rope.rotary_dim], 1
    )
    rotary = step.rotary[rope]
    row = torch.cat((parts.norm(kept).unsqueeze(1), rotate(key.unsqueeze(1), *rotary)), -1)
    step.keep(layer, row)
    if parts.query is not None:
        assert parts.query_norm is not None
        own = parts.query.multiply(parts.query_norm(own), step.single_rows)
    queries = own.reshape(own.shape[0], attention.num_heads, -1)
    still, turning = queries[..., : latent.key_dim], queries[..., latent.key_dim :]
    keys, _ = _heads_of(parts.expansion, attention)
    return torch.cat((_multiply_heads(still, keys, step.single_rows), rotate(turning, *rotary)), -1)


def expand_values(
    step: Step, attended: torch.Tensor, attention: AttentionSpec, weights: LayerWeights
) -> torch.Tensor:
    """Return each head's value, float32 [tokens, heads * value_dim], of its sum of latents."""
    assert weights.latent is not None
    _, values = _heads_of(weights.latent.expansion, attention)
    sums = attended.view(attended.shape[0], attention.num_heads, -1)
    return _multiply_heads(sums, values.transpose(1, 2), step.single_rows).flatten(1)


def _heads_of(
    expansion: torch.Tensor, attention: AttentionSpec
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what makes the keys of heads, [heads, key_dim, rank], and what makes their values."""
    latent = attention.latent
    assert latent is not None
    heads = expansion.view(attention.num_heads, -1, latent.rank)
    return heads[:, : latent.key_dim], heads[:, latent.key_dim :]


def _multiply_heads(rows: torch.Tensor, matrices: torch.Tensor, single_rows: int) -> torch.Tensor:
    """Return [tokens, heads, N] of [tokens, heads, K] and [heads, K, N].

    The bits of each of the first ``single_rows`` depend on that row alone.
    """
    parts = list(torch.split(rows[:single_rows], 1)) if single_rows else []
    if single_rows < rows.shape[0]:
        parts.append(rows[single_rows:])
    return torch.cat([torch.bmm(part.transpose(0, 1), matrices).transpose(0, 1) for part in parts])
