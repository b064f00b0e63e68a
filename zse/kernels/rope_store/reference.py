"""Reference of ``rope_store``: plain, slow, obviously right."""

from __future__ import annotations

import torch

from zse.kernels.norm.reference import rms_norm

TOLERANCE = 1e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""
INT8_CACHE_TOLERANCE = 2e-2
"""The same of what an int8 cache with 32-channel scales holds."""
NARROW_CACHE_TOLERANCE = 0.25
"""The same of what a cache of four bits holds: a step is an eighth of the largest of 16, whose
opposite has no code, and a scale is off by up to an eighth."""


def rotate(heads: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Rotate [T, heads, D]: of the first R columns, i and i + R/2 are the axes of rotation i."""
    angles = positions.float()[:, None, None] * frequencies
    turning = 2 * frequencies.shape[0]
    first, second = heads[..., :turning].chunk(2, -1)
    return torch.cat(
        (
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
            heads[..., turning:],
        ),
        -1,
    )


def rope_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    num_heads: int,
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> torch.Tensor:
    """Rotate queries and keys, write keys and values, return the queries.

    Args:
        qkv: float32 [T, HQ + 2 * HK, D].
        positions: int64 [T].
        frequencies: float32 [R / 2], radians per position; R columns of a head turn.
        slots: int64 [T], rows of ``cache``.
        cache: [S, 2 * HK, D], keys first; changed in place.
        num_heads: HQ.
        head_norms: Weights [D] for queries and for keys, and epsilon; None for no head norm.

    Returns:
        float32 [T, HQ, D].
    """
    kv_heads = cache.shape[1] // 2
    query = qkv[:, :num_heads]
    keys = qkv[:, num_heads : num_heads + kv_heads]
    values = qkv[:, num_heads + kv_heads :]
    if head_norms is not None:
        q_norm, k_norm, epsilon = head_norms
        query, keys = rms_norm(query, q_norm, epsilon), rms_norm(keys, k_norm, epsilon)
    keys = rotate(keys, positions, frequencies)
    for token, slot in enumerate(slots.tolist()):
        cache[slot, :kv_heads] = keys[token].to(cache.dtype)
        cache[slot, kv_heads:] = values[token].to(cache.dtype)
    return rotate(query, positions, frequencies)
