"""Chooses where to cut a model's layers into pipeline stages for devices of equal speed.

The slowest stage says how fast all are, so the cuts make it as short as they can: an exact dynamic
program over places where a model can be cut at all. A stage takes as long as it reads bytes, which
the head is a good part of. All stages must have layers of every kind that keeps something of a
sequence, since one allocator says for all of them where that lies.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias

from zse.backends.operations import is_attention
from zse.errors import UsageError
from zse.models.stage import check_ends
from zse.records import record
from zse.units import memory_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec
    from zse.models.work import ModelWork

_LAYER_READS = 4 << 20
"""Bytes that could be read in the time that a layer takes besides its reads: launches, norms."""
_FULL = float("inf")
_Seconds: TypeAlias = "Callable[[int, int, int], float]"
_Ends: TypeAlias = "tuple[int, ...] | None"


@record
class StageLayers:
    """Layers ``first`` to ``end`` of a model, and what they ask of a device."""

    first: int
    end: int
    read_bytes: int
    """That a step reads of weights."""
    held_bytes: int
    """Of weights, and of keys and values."""


def cut_layers(
    spec: ModelSpec,
    work: ModelWork,
    num_stages: int,
    *,
    context_tokens: int,
    memory_bytes: Sequence[int] = (),
) -> tuple[StageLayers, ...]:
    """Return the stages whose slowest is the fastest of all ways to cut.

    Args:
        spec: The model.
        work: What its layers ask for.
        num_stages: How many stages there are to be.
        context_tokens: Longest sequence: windows that are no shorter keep everything.
        memory_bytes: That each stage's device has for weights, keys and values; empty: enough.

    Raises:
        UnsupportedModelError: Layers of this model need more than the stream.
        UsageError: It has too few layers, or they fit nowhere; the message says which.
    """
    check_ends(spec)
    count = len(spec.layers)
    kinds = [_kinds(layer, context_tokens) for layer in spec.layers]
    reads = _sums([one.read_bytes for one in work.layers])
    held = _sums([one.weight_bytes + one.kv_bytes for one in work.layers])
    may_cut = [_may_cut(spec, place) for place in range(count + 1)]
    needed = frozenset[object]().union(*kinds)

    def seconds(stage: int, first: int, end: int) -> float:
        """Return how long a stage takes, in bytes that are read meanwhile."""
        if not frozenset[object]().union(*kinds[first:end]) >= needed:
            return _FULL
        if memory_bytes and held[end] - held[first] > memory_bytes[stage]:
            return _FULL
        return reads[end] - reads[first] + _LAYER_READS * (end - first)

    ends = _best_ends(count, num_stages, may_cut, seconds)
    if ends is None:
        raise _no_cuts(spec, num_stages, held[-1], memory_bytes)
    return tuple(
        StageLayers(
            first=first,
            end=end,
            read_bytes=reads[end] - reads[first],
            held_bytes=held[end] - held[first],
        )
        for first, end in itertools.pairwise((0, *ends))
    )


def _best_ends(count: int, num_stages: int, may_cut: list[bool], seconds: _Seconds) -> _Ends:
    """Return where each stage ends; None where there is no way."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(_FULL, ())] * count]
    for stage in range(num_stages):
        least = num_stages - stage - 1  # layers that must be left for those behind it
        ends = range(count, count + 1) if not least else range(stage + 1, count - least + 1)
        found: list[tuple[float, tuple[int, ...]]] = [(_FULL, ())] * (count + 1)
        for end in ends:
            if may_cut[end]:
                ways = (
                    (max(slowest, seconds(stage, first, end)), (*before, end))
                    for first, (slowest, before) in enumerate(best[:end])
                    if slowest < _FULL
                )
                found[end] = min(ways, default=(_FULL, ()))
        best = found
    slowest, ends_of = best[count]
    return ends_of if slowest < _FULL else None


def _sums(numbers: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(numbers)]


def _kinds(layer: LayerSpec, context_tokens: int) -> frozenset[object]:
    """Return what a layer keeps of a sequence: states, windows, or all keys and values."""
    mixer = layer.mixer
    if not is_attention(mixer):
        return frozenset(("state",))
    if mixer.kv_of_layer is not None:
        return frozenset()
    window = mixer.window or 0
    return frozenset((window if window < context_tokens else 0,))


def _may_cut(spec: ModelSpec, place: int) -> bool:
    """Whether no layer from a place on reads the keys of one before it."""
    return all(
        not is_attention(layer.mixer)
        or layer.mixer.kv_of_layer is None
        or layer.mixer.kv_of_layer >= place
        for layer in spec.layers[place:]
    )


def _no_cuts(
    spec: ModelSpec, num_stages: int, held_bytes: int, memory_bytes: Sequence[int]
) -> UsageError:
    layers = f"the {len(spec.layers)} layers of this model"
    if memory_bytes:
        return UsageError(
            f"{layers} take {memory_text(held_bytes)}, which {num_stages} stages with "
            f"{', '.join(map(memory_text, memory_bytes))} do not hold",
            hint="Use more devices, a smaller --max-context, or a narrower scheme.",
        )
    return UsageError(
        f"{layers} cannot be shared out among {num_stages} stages that have all their kinds",
        hint="Use a smaller --pipeline-parallel, or --tensor-parallel.",
    )
