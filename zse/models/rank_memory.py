"""How much memory each of several devices takes that compute a model together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.ranks import Share
from zse.errors import UsageError
from zse.format.layout import PlannedTensor
from zse.models.cuts import cut_layers
from zse.models.memory import DEFAULT_CONTEXT, MemoryEstimate, ModelFacts, estimate_memory
from zse.models.share import share_of
from zse.models.stage_share import stage_share, whole_share
from zse.models.work import work_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.models.share import ModelShare

INBOX_BYTES = 64 << 20
"""What a GPU sets aside for what the others send it."""
RANKS = (2, 4, 8)
"""Numbers of devices that are looked at where none is asked for."""


def estimate_rank(
    facts: ModelFacts,
    quantization: str,
    ranks: int,
    *,
    on_gpu: bool,
    stages: int = 1,
    context_tokens: int = 0,
    kv_dtype: str = "auto",
) -> MemoryEstimate:
    """Estimate what the first of so many devices takes, which is the largest share.

    The other arguments are those of ``estimate_memory``.

    Args:
        ranks: Devices that divide each layer.
        stages: Of layers behind each other, each of so many ranks; the fullest one is told.

    Raises:
        UsageError: The model cannot be divided among so many.
        UnsupportedModelError: Its layers need more than the stream, so there are no stages of it.
    """
    estimate = partial(
        estimate_memory, on_gpu=on_gpu, context_tokens=context_tokens, kv_dtype=kv_dtype
    )
    if ranks == stages == 1:
        return estimate(facts, quantization)
    found = max(
        (
            estimate(own, quantization)
            for own in _shares(facts, quantization, ranks, stages, context_tokens)
        ),
        key=lambda one: one.total_bytes,
    )
    return replace(
        found,
        quantization=facts.stored_quantization or quantization,
        stored_bytes=facts.stored_bytes_as(quantization),
        overhead_bytes=found.overhead_bytes + (INBOX_BYTES if on_gpu else 0),
    )


def _shares(
    facts: ModelFacts, quantization: str, ranks: int, stages: int, context_tokens: int
) -> list[ModelFacts]:
    """Return what the first rank of each stage holds, as facts of a model of its own."""
    tensors, spec = facts.loaded_as(quantization), facts.spec
    whole = whole_share(spec)
    if ranks > 1:
        whole = share_of(spec, tensors, Share(rank=0, ranks=ranks))
    parts: list[ModelShare] = [whole]
    if stages > 1:
        context = min(context_tokens or DEFAULT_CONTEXT, spec.max_position)
        work = work_of(spec, tensors, streams=1, context_tokens=context)
        cuts = cut_layers(spec, work, stages, context_tokens=context)
        parts = [stage_share(whole, one.first, one.end) for one in cuts]
    found = []
    for part in parts:
        shapes = {weight.name: weight.shape for weight in part.spec.weights()}
        held = tuple(
            PlannedTensor(
                name=one.name,
                scheme=one.scheme,
                shape=shapes.get(one.name, one.shape),
                group_size=one.group_size,
            )
            for one in tensors
            if stages == 1 or one.name in shapes
        )
        found.append(replace(facts, spec=part.spec, tensors=held, stored_quantization=""))
    return found


def fewest_ranks(
    facts: ModelFacts,
    quantization: str,
    free_bytes: int,
    *,
    on_gpu: bool,
    context_tokens: int = 0,
    most: Iterable[int] = (1, *RANKS),
) -> int | None:
    """Return how many devices with so much memory a model needs; None where none of them do."""
    for ranks in most:
        try:
            estimate = estimate_rank(
                facts, quantization, ranks, on_gpu=on_gpu, context_tokens=context_tokens
            )
        except UsageError:
            continue
        if estimate.total_bytes <= free_bytes:
            return ranks
    return None
