"""The rows that the parts of a scheme stand for, by the dequantizer of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.format.as_torch import dequantize
from zse.format.spec import TensorEntry

if TYPE_CHECKING:
    import torch

    from zse.format.schemes import Scheme


def restored(
    scheme: Scheme, parts: dict[str, torch.Tensor], shape: torch.Size, group_size: int = 0
) -> torch.Tensor:
    """Return float32 of a shape."""
    entry = TensorEntry(
        name="w", scheme=scheme, shape=tuple(shape), group_size=group_size, parts=()
    )
    return dequantize(entry, parts)
