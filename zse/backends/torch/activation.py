"""What bends an MLP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.models.layer_spec import MLPSpec

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda values: functional.relu(values).square_(),
}
_SWIGLU_SLOPE = 1.702


def activate_rows(joined: torch.Tensor, mlp: MLPSpec, single_rows: int) -> torch.Tensor:
    """Return float32 [tokens, width] of gate and up, [tokens, 2 * width], or of up alone."""
    return _by_row(partial(_activate, mlp=mlp), joined, single_rows)


def activated(values: torch.Tensor, activation: str, single_rows: int) -> torch.Tensor:
    """Return float32 [tokens, width], each number's activation."""
    return _by_row(_ACTIVATIONS[activation], values, single_rows)


def _by_row(
    function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, single_rows: int
) -> torch.Tensor:
    """Compute rows before ``single_rows`` one at a time.

    Vectorized and scalar exponentials differ in the last bit, and which of them an element gets
    depends on where it lies in the whole tensor.
    """
    if values.shape[0] == 1 or single_rows == 0:
        return function(values)
    parts = [function(row) for row in torch.split(values[:single_rows], 1)]
    if single_rows < values.shape[0]:
        parts.append(function(values[single_rows:]))
    return torch.cat(parts)


def _activate(joined: torch.Tensor, mlp: MLPSpec) -> torch.Tensor:
    if mlp.activation == "swiglu_oai":
        return _swiglu_oai(joined, mlp.limit)
    activation = _ACTIVATIONS[mlp.activation]
    if not mlp.is_gated:
        return activation(joined)
    gate, up = joined.chunk(2, -1)
    return activation(gate).mul_(up)


def _swiglu_oai(joined: torch.Tensor, limit: float | None) -> torch.Tensor:
    gate, up = joined.chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(_SWIGLU_SLOPE * gate) * (up + 1.0)
