"""Reference of ``lm_head_sample``: plain, slow, obviously right."""

from __future__ import annotations

import torch


def kept_probabilities(
    logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Return float64 probabilities [V] of a draw with a temperature; 0 where a token is cut.

    Args:
        logits: float32 [V], adjusted.
        temperature: Above 0.
        top_k: Number of tokens kept, lowest identity first among equal logits; 0 keeps all.
        top_p: The shortest run from the likeliest that reaches this part of what top_k and min_p
            leave is kept.
        min_p: Tokens less likely than this part of the likeliest are cut.
    """
    probabilities = torch.softmax(logits.double() / temperature, 0)
    probabilities[probabilities < probabilities.max() * min_p] = 0.0
    ordered, tokens = probabilities.sort(descending=True, stable=True)
    if top_k > 0:
        ordered = ordered[:top_k]
    running = ordered.cumsum(0)
    if top_p < 1.0:
        ordered = ordered[: int(torch.searchsorted(running, top_p * running[-1])) + 1]
    kept = torch.zeros_like(probabilities)
    kept[tokens[: ordered.shape[0]]] = ordered / ordered.sum()
    return kept
