"""How fast a GPU takes bytes from pinned memory: the bound of what streams."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse.units import MIB

if TYPE_CHECKING:
    from zse.device.gpu import Block, Gpu

_BYTES = 64 * MIB
_REPEATS = 8
"""Half a gigabyte in all: 10 ms on a fast link, 80 on a slow one."""


def measure_link(gpu: Gpu, block: Block) -> float:
    """Return bytes per second into a block, which nobody reads meanwhile."""
    length = min(_BYTES, block.length_bytes)
    stream, host = gpu.create_stream(), gpu.allocate_host(length)
    try:
        gpu.copy_to_device(block.address, host.address, length, stream)
        stream.synchronize()
        started = time.perf_counter()
        for _ in range(_REPEATS):
            gpu.copy_to_device(block.address, host.address, length, stream)
        stream.synchronize()
        return _REPEATS * length / max(time.perf_counter() - started, 1e-9)
    finally:
        host.free()
        stream.destroy()
