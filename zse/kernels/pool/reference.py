"""Reference of ``pool``: plain, slow, obviously right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.spec import Pooling


def pool(states: torch.Tensor, lengths: Sequence[int], pooling: Pooling) -> torch.Tensor:
    """Return float32 [texts, hidden] of states [rows, hidden]; a text has so many rows of them."""
    texts = torch.split(states, list(lengths))
    if pooling == "mean":
        return torch.stack([text.mean(0) for text in texts])
    return torch.stack([text[0 if pooling == "first" else -1] for text in texts])
