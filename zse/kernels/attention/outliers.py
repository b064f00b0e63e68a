"""Layers whose keys must not be stored in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTLIER_RATIO = 5.0


def kv_layers_kept_in_16_bits(norms: Sequence[float]) -> set[int]:
    """Return the layers whose key bias is far larger than that of the others.

    Some models (Qwen2.5: the first and the last layer) carry huge constants in a few key channels.
    Beside them, 8 bits leave nothing of the rest.

    Args:
        norms: Euclidean norm of each layer's key bias; empty for a model without biases.
    """
    if not norms:
        return set()
    # By hand: ``statistics`` brings decimal numbers and random ones into every start.
    ordered, half = sorted(norms), len(norms) // 2
    limit = OUTLIER_RATIO * (ordered[half] + ordered[~half]) / 2
    return {layer for layer, norm in enumerate(norms) if norm > limit}
