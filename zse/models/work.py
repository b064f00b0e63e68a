"""The cost of each layer, for planners: bytes in memory, bytes that a step reads, bytes of cache.

The embedding goes with the first layer, and norm, head and choice of tokens go with the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.backends.resident import KV_ELEMENT_BITS
from zse.format.schemes import stored_bytes
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.memory import Stored
    from zse.models.spec import ModelSpec


@record
class LayerWork:
    """One layer, with what goes with it."""

    weight_bytes: int
    """Memory that its weights take."""
    read_bytes: int
    """What each step reads of them: all but tables of which it gathers rows."""
    kv_bytes: int
    """Keys and values of all sequences together."""


@record
class ModelWork:
    """The cost of a model at a given load."""

    layers: tuple[LayerWork, ...]
    hidden_size: int
    streams: int = 1
    """Answers that run at once."""
    context_tokens: int = 4096
    """Length of each of them, prompt and answer."""

    @property
    def weight_bytes(self) -> int:
        return sum(layer.weight_bytes for layer in self.layers)


def work_of(
    spec: ModelSpec, tensors: Sequence[Stored], *, streams: int, context_tokens: int
) -> ModelWork:
    """Return the cost of each layer of a model whose tensors are stored in these schemes."""
    sizes = {one.name: stored_bytes(one.scheme, one.shape, one.group_size) for one in tensors}
    element = KV_ELEMENT_BITS["auto"] // 8
    held = [0] * len(spec.layers)
    read = [0] * len(spec.layers)
    kept = [0] * len(spec.layers)
    for place, layer in enumerate(spec.layers):
        mixer = layer.mixer
        if is_attention(mixer) and mixer.kv_of_layer is None:
            tokens = min(context_tokens, mixer.window or context_tokens)
            kept[place] = streams * tokens * mixer.cached_rows * mixer.head_dim * element
    places = {layer.name: place for place, layer in enumerate(spec.layers)}
    for group in spec.groups():
        end = len(spec.layers) - 1 if group.name == "final" else 0
        place = places.get(group.name, end)
        for weight in group.weights:
            size = sizes.get(weight.name, 0)
            held[place] += size
            read[place] += 0 if weight.name in spec.gathered else size
    if spec.is_tied and len(spec.layers) > 1:  # the head reads the table at the other end
        table = sizes.get(spec.embedding.weight.name, 0)
        read[0] -= table
        read[-1] += table
        held[-1] += table
    return ModelWork(
        layers=tuple(
            LayerWork(weight_bytes=a, read_bytes=b, kv_bytes=c)
            for a, b, c in zip(held, read, kept, strict=True)
        ),
        hidden_size=spec.hidden_size,
        streams=streams,
        context_tokens=context_tokens,
    )
