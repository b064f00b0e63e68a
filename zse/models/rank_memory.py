"""How much memory each of several devices takes that compute a model together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.ranks import Share
from zse.errors import UsageError
from zse.format.layout import PlannedTensor
from zse.models.memory import MemoryEstimate, ModelFacts, estimate_memory
from zse.models.share import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    context_tokens: int = 0,
    kv_dtype: str = "auto",
) -> MemoryEstimate:
    """Estimate what the first of so many devices takes, which is the largest share.

    The arguments are those of ``estimate_memory``.

    Raises:
        UsageError: The model cannot be divided among so many.
    """
    estimate = partial(
        estimate_memory, on_gpu=on_gpu, context_tokens=context_tokens, kv_dtype=kv_dtype
    )
    if ranks == 1:
        return estimate(facts, quantization)
    tensors = facts.loaded_as(quantization)
    share = share_of(facts.spec, tensors, Share(rank=0, ranks=ranks))
    shapes = {weight.name: weight.shape for weight in share.spec.weights()}
    held = tuple(
        PlannedTensor(
            name=one.name,
            scheme=one.scheme,
            shape=shapes.get(one.name, one.shape),
            group_size=one.group_size,
        )
        for one in tensors
    )
    own = replace(facts, spec=share.spec, tensors=held, stored_quantization="")
    found = estimate(own, quantization)
    return replace(
        found,
        quantization=facts.stored_quantization or quantization,
        stored_bytes=facts.stored_bytes_as(quantization),
        overhead_bytes=found.overhead_bytes + (INBOX_BYTES if on_gpu else 0),
    )


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
