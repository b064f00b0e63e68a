"""Which device each rank has, and what it may take of one that it shares with others.

A GPU that is named twice computes for two ranks, which take turns on it: nothing is faster so, but
everything that several GPUs do can be tried on one, to the bit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from zse.device.open import check_device, runs_on_gpu
from zse.errors import UsageError
from zse.option import with_values
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.engine")


def devices_of(options: LoadOptions) -> list[str]:
    """Return the name of each rank's device.

    Raises:
        UsageError: The GPUs that are named are not as many as there are ranks.
        DeviceError: The device is unknown, or there are fewer GPUs.
    """
    name, count = options.device.name, options.ranks.num_devices
    first = check_device(name)
    if not runs_on_gpu(name):
        if options.ranks.gpus:
            raise UsageError(
                f"GPUs {options.ranks.gpus} are named, but the model runs on {name}",
                hint="Leave --gpus out, or use --device cuda.",
            )
        return ["cpu" if name == "auto" else name] * count
    ordinals = named_gpus(options.ranks.gpus) or list(range(first, first + count))
    if len(ordinals) != count:
        raise UsageError(
            f"{len(ordinals)} GPUs are named for {count} ranks: {options.ranks.gpus}",
            hint="Name as many as --tensor-parallel times --pipeline-parallel.",
        )
    return [f"cuda:{ordinal}" for ordinal in ordinals]


def warn_of_sharing(devices: Sequence[str]) -> None:
    """Say which GPUs compute for several ranks."""
    for name in sorted(set(devices)):
        if name[:5] == "cuda:" and (sharing := devices.count(name)) > 1:
            _LOG.warning("GPU %s computes for %d ranks, which take turns", name[5:], sharing)


def have_one_each(devices: Sequence[str]) -> bool:
    """Whether each rank has a GPU of its own: its process is shown no other one then.

    A driver takes 0.2 s for each GPU that it finds. The others' memory can be mapped all the same.
    """
    return len(set(devices)) == len(devices) and all(name[:5] == "cuda:" for name in devices)


def total_bytes_of(ordinals: Sequence[int]) -> dict[int, int]:
    """Return the memory of some GPUs; nothing is opened for it."""
    from zse.device.survey import total_bytes

    return {ordinal: total_bytes(ordinal) for ordinal in ordinals}


def options_of(
    options: LoadOptions,
    devices: Sequence[str],
    rank: int,
    *,
    total: Callable[[Sequence[int]], dict[int, int]] = total_bytes_of,
) -> LoadOptions:
    """Return what a rank is loaded with: its device, and an even part of one that ranks share."""
    name = devices[rank]
    values: dict[str, Any] = {"device": name}
    sharing = devices.count(name)
    if sharing > 1 and runs_on_gpu(name):
        ordinal = check_device(name)
        whole_gib = options.device.vram_gib or total([ordinal])[ordinal] / GIB
        values |= {"vram_gib": whole_gib / sharing, "kv_gib": options.cache.kv_gib / sharing}
    return with_values(options, values)


def named_gpus(text: str) -> list[int]:
    """Return the GPUs that a list names; one may be named for several ranks.

    Raises:
        UsageError: It is no list of numbers.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"GPUs {text!r} are no list of numbers", hint="Write them as in --gpus 0,1."
        )
    return [int(part) for part in parts]
