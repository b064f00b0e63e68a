"""Reference of ``attention``: plain, slow, obviously right."""

from __future__ import annotations

import torch

TOLERANCE = 1e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""


def attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    first_position: int,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    *,
    whole: bool = False,
) -> torch.Tensor:
    """Return attention of consecutive queries of one sequence.

    Args:
        query: float32 [T, HQ, D] of positions ``first_position`` and after.
        cache: [S, 2 * HK, D], keys first.
        slots: int64 [P], the cache row of every position from 0 to the last query's, or to the
            end of a whole text.
        window: Positions a query sees, its own included; None for all before it.
        softcap: Bound of scores; 0 for none.
        sinks: float32 [HQ], logits that have no value and take their share; None for none.
        whole: Whether queries see what follows them, too, as far as the window reaches.

    Returns:
        float32 [T, HQ * D].
    """
    kv_heads = cache.shape[1] // 2
    repeats = query.shape[1] // kv_heads
    outputs = torch.empty_like(query)
    for token in range(query.shape[0]):
        position = first_position + token
        first_key = 0 if window is None else max(0, position - window + 1)
        end = position + 1
        if whole:
            end = len(slots) if window is None else position + window
        seen = cache[slots[first_key:end]].float()
        for head in range(query.shape[1]):
            keys = seen[:, head // repeats]
            values = seen[:, kv_heads + head // repeats]
            scores = keys @ query[token, head] / query.shape[2] ** 0.5
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1]))
            outputs[token, head] = torch.softmax(scores, 0)[: len(seen)] @ values
    return outputs.flatten(1)
