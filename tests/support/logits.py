"""Logits as a runner returns them, for arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from zse.backends.types import LogitRows


def as_tensor(rows: LogitRows) -> torch.Tensor:
    """Return float32 [tokens, vocab]."""
    return torch.stack([torch.frombuffer(row, dtype=torch.float32) for row in rows])
