"""Reference of latent attention: every head's keys and values are made, and attended to."""

from __future__ import annotations

import torch

from zse.kernels.rope_store.reference import rotate


def latent_attention(
    queries: torch.Tensor,
    latents: torch.Tensor,
    turning: torch.Tensor,
    expansion: torch.Tensor,
    frequencies: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return causal attention of the last tokens of a sequence, float32 [T, heads, value_dim].

    Args:
        queries: [T, heads, key_dim + R], of which the last R columns turn.
        latents: [N, rank], normed; the last T are those of the queries' tokens.
        turning: [N, R], the key that all heads share, not yet turned.
        expansion: [heads, key_dim + value_dim, rank].
        frequencies: [R / 2], radians a token.
        scale: Multiplies scores.
    """
    count, (first, rotary_dim) = len(latents), (len(latents) - len(queries), turning.shape[1])
    key_dim = queries.shape[2] - rotary_dim
    made = torch.einsum("nr,hdr->nhd", latents.float(), expansion.float())
    keys, values = made[..., :key_dim], made[..., key_dim:]
    positions = torch.arange(count)
    turned = rotate(turning.unsqueeze(1), positions, frequencies).expand(-1, keys.shape[1], -1)
    keys = torch.cat((keys, turned), -1)
    asked = rotate(queries[..., key_dim:], positions[first:], frequencies)
    asked = torch.cat((queries[..., :key_dim], asked), -1)
    scores = torch.einsum("thd,nhd->htn", asked, keys) * scale
    hidden = positions > positions[first:].unsqueeze(1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("htn,nhd->thd", weights, values)
