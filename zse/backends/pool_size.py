"""How many blocks a KV pool in a machine's memory has that was not given a number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import DeviceError
from zse.units import GIB

if TYPE_CHECKING:
    from zse.device.probe import DeviceInfo
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_SEQUENCES = 16
"""The pool that is chosen for the user holds at most this many sequences of full length."""


def choose_num_blocks(
    spec: ModelSpec, options: LoadOptions, machine: DeviceInfo, *, block_bytes: int
) -> int:
    """Return the blocks that the memory for them holds.

    Raises:
        DeviceError: The memory that was asked for is not there, or holds no block.
    """
    cache, available = options.cache, machine.available_memory_bytes
    if not block_bytes:
        return 1  # nothing is kept
    if cache.kv_bytes > available:
        raise DeviceError(
            f"a KV cache of {cache.kv_bytes / GIB:.1f} GiB was asked for; "
            f"{available / GIB:.1f} GiB of memory are available",
            hint="Lower --kv-gib (ZSE_KV_GIB), or leave it out: a quarter of what is "
            "available is then the limit.",
        )
    if cache.kv_bytes:
        count = cache.kv_bytes // block_bytes
    else:
        full = -(-(options.batch.max_context or spec.max_position) // cache.block_size)
        count = min(available // 4 // block_bytes, full * _SEQUENCES)
    if count < 1:
        raise DeviceError(
            f"the KV cache has no room for one block of {block_bytes} bytes",
            hint="Give it more memory, or ask for a smaller context.",
        )
    return count
