"""How many blocks a KV pool in a machine's memory has that was not given a number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import DeviceError
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.kv_groups import KVGroups
    from zse.device.probe import DeviceInfo
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_SEQUENCES = 16
"""The pool that is chosen for the user holds at most this many sequences of full length."""


def limited(
    groups: KVGroups, options: LoadOptions, machine: DeviceInfo, block_bytes: Sequence[int]
) -> KVGroups:
    """Return the groups of a model's layers with windows that leave room for whole sequences."""
    if options.cache.num_blocks:
        return groups
    return groups.within(_cache_bytes(options, machine), block_bytes)


def choose_num_blocks(
    spec: ModelSpec,
    options: LoadOptions,
    machine: DeviceInfo,
    *,
    groups: KVGroups,
    block_bytes: Sequence[int],
) -> int:
    """Return the blocks for whole sequences that the memory holds, with what windows need.

    Args:
        spec: The model.
        options: What was asked for.
        machine: What there is.
        groups: The groups of the model's layers.
        block_bytes: Bytes of a block of each.

    Raises:
        DeviceError: The memory that was asked for is not there, or holds no block.
    """
    cache, available = options.cache, machine.available_memory_bytes
    if not any(block_bytes):
        return 1  # nothing is kept
    if cache.kv_bytes > available:
        raise DeviceError(
            f"a KV cache of {cache.kv_bytes / GIB:.1f} GiB was asked for; "
            f"{available / GIB:.1f} GiB of memory are available",
            hint="Lower --kv-gib (ZSE_KV_GIB), or leave it out: a quarter of what is "
            "available is then the limit.",
        )
    full = -(-(options.batch.max_context or spec.max_position) // cache.block_size)
    memory_bytes = _cache_bytes(options, machine)
    if cache.kv_bytes:
        useful = full * options.batch.max_sequences
        count = groups.fitting(memory_bytes, block_bytes, useful=useful)
    else:
        useful = full * _SEQUENCES
        count = min(groups.fitting(memory_bytes, block_bytes, useful=useful), useful)
    if count < 1:
        raise DeviceError(
            f"the KV cache has no room for one block of {sum(block_bytes)} bytes",
            hint="Give it more memory, or ask for a smaller context.",
        )
    return count


def _cache_bytes(options: LoadOptions, machine: DeviceInfo) -> int:
    """Return the memory that was asked for, or the share that is chosen for the user."""
    return options.cache.kv_bytes or machine.available_memory_bytes // 4
