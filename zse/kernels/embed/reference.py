"""Reference of ``embed``: plain, slow, obviously right."""

from __future__ import annotations

import torch


def embed(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return float32 [T, H]: row ``token_ids[t]`` of the dequantized embedding [V, H]."""
    return torch.stack([weight[int(token)].float() for token in token_ids])
