"""What the GPUs of stages have for weights, keys and values, before a layer is given to any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.open import check_device, runs_on_gpu
from zse.engine.ranks.devices import total_bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PLENTY = 2
"""A GPU of so many times what a stage holds is not asked how much of it is free."""
_RESERVED_BYTES = 1 << 30
"""Of each GPU for its driver, the code of kernels, and what a step computes with."""


def free_bytes_of(ordinals: Sequence[int]) -> dict[int, int]:
    """Return what is free of some GPUs: each is opened for a moment, a fifth of a second."""
    from zse.device.survey import survey_cuda

    gpus = {state.info.ordinal: state.info.free_bytes for state in survey_cuda().gpus}
    return {ordinal: gpus.get(ordinal, 0) for ordinal in ordinals}


def stage_bytes(
    devices: Sequence[str],
    num_stages: int,
    held_bytes: int,
    vram_bytes: int = 0,
    *,
    total: Callable[[Sequence[int]], dict[int, int]] = total_bytes_of,
    free: Callable[[Sequence[int]], dict[int, int]] = free_bytes_of,
) -> tuple[int, ...]:
    """Return the bytes that each stage may hold; empty where there is no need to ask.

    Args:
        devices: Of all ranks; those of the last stage come first.
        num_stages: How many stages there are.
        held_bytes: What the model takes together. Where each GPU has twice an even share of it,
            whatever else may run there, none is opened to be asked.
        vram_bytes: That may be used of each; 0: all.
    """
    if not all(map(runs_on_gpu, devices)):
        return ()
    ordinals, ranks = [check_device(name) for name in devices], len(devices) // num_stages
    whole = total(ordinals)
    sizes = {whole[one] // ordinals.count(one) for one in ordinals}
    even = held_bytes // len(devices)
    if len(sizes) == 1 and min(sizes) > _PLENTY * even:
        return ()
    room = free(ordinals)
    each = []
    for one in ordinals:
        usable = min(room[one], vram_bytes or room[one])
        each.append(max(0, usable // ordinals.count(one) - _RESERVED_BYTES))
    stages = [ranks * min(each[at : at + ranks]) for at in range(0, len(each), ranks)]
    return tuple(reversed(stages))
