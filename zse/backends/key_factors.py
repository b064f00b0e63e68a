"""Factors that keys are divided by before they are kept in few bits, and queries multiplied by.

Some models (Qwen2.5) add large constants to a few columns of their keys: up to 200 beside columns
that move by 5. The scale of whole numbers then fits the constants, and the rest is lost. Divided by
a constant of its own, each column is as large as the others. Products of queries and keys stay what
they were, to the last bit: factors are powers of two, and the same for both columns of a pair that
turns.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

from zse.backends.operations import is_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.models.layer_spec import AttentionSpec
    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec

NARROW_KV_DTYPES = ("int8", "int4")
"""Types of cached keys that are whole numbers with scales."""
_LARGEST_SIZE = 2.0**127
USUAL_SIZE = 8.0
"""Keys move by about so much without any constant: divergence of Qwen2.5-Coder-0.5B is least when
constants are brought down to this."""


def key_factors(
    spec: ModelSpec, vector: Callable[[WeightSpec], Sequence[float]]
) -> dict[int, array[float]]:
    """Return the factors of each layer whose keys have large constants.

    Args:
        spec: The model.
        vector: Gives a vector of the file in float32.

    Returns:
        float32 [kv_heads, head_dim] by layer; one that reads another's keys has the other's.
    """
    found: dict[int, array[float]] = {}
    for layer in spec.layers:
        mixer = layer.mixer
        if not is_attention(mixer) or not mixer.is_causal:
            continue
        if mixer.kv_of_layer is not None:
            if mixer.kv_of_layer in found:
                found[layer.index] = found[mixer.kv_of_layer]
        elif (bias := mixer.qkv.bias) is not None and _keeps_constants(mixer):
            factors = factors_of(mixer, vector(bias))
            if max(factors) > 1.0:
                found[layer.index] = factors
    return found


def _keeps_constants(attention: AttentionSpec) -> bool:
    """Whether keys are what the joined product gives: no norm comes behind it."""
    return attention.k_norm is None and attention.latent is None


def factors_of(attention: AttentionSpec, bias: Sequence[float]) -> array[float]:
    """Return the factors of one layer, given all that is added to its joined product."""
    first = attention.query_columns * (1 + attention.is_gated)
    half = 0 if attention.rope is None else attention.rope.rotary_dim // 2
    factors = array("f")
    for head in range(first, first + attention.kv_columns, attention.head_dim):
        added = bias[head : head + attention.head_dim]
        sizes = [math.hypot(*pair) for pair in zip(added[:half], added[half:], strict=False)]
        sizes = [*sizes, *sizes, *map(abs, added[2 * half :])]
        factors.extend(
            2.0 ** max(0, round(math.log2(_finite(size) / USUAL_SIZE))) for size in sizes
        )
    return factors


def _finite(size: float) -> float:
    """Return a size that has a logarithm: a file may hold any numbers."""
    return min(max(1.0, size), _LARGEST_SIZE)
