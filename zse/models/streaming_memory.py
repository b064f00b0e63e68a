"""How little memory a model can do with when its layers stream through it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zse.format.schemes import stored_bytes
from zse.stream.fit import FEWEST_SLOTS, LAYER_PREFIX

if TYPE_CHECKING:
    from zse.models.memory import MemoryEstimate, ModelFacts


def least_streaming_bytes(facts: ModelFacts, estimate: MemoryEstimate) -> int:
    """Return the memory that an estimate comes to with the fewest layers there at once.

    That is what is no layer, two slots for layers, and all that is needed besides weights. No more
    than the estimate itself.
    """
    layers: Counter[str] = Counter()
    ends = 0
    for tensor in facts.loaded_as(estimate.quantization):
        size = stored_bytes(tensor.scheme, tensor.shape, tensor.group_size)
        if tensor.name.startswith(LAYER_PREFIX):
            layers[tensor.name.split(".")[1]] += size
        else:
            ends += size
    slots = FEWEST_SLOTS * max(layers.values(), default=0)
    besides = estimate.total_bytes - estimate.weights_bytes
    return min(estimate.total_bytes, besides + ends + slots)
