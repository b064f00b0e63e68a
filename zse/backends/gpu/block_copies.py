"""KV blocks between a GPU's pool and the host: through pinned memory, in the engine's stream.

An image lies piece by piece, layer by layer: a piece (keys, values, scales of either) of all its
blocks stands together, as a run of blocks does in the pool. So a prefix whose blocks follow each
other there, as those of an empty pool do, is a few copies a layer and not a few a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.kv_dtypes import named
from zse.backends.kv_images import KVImages, layout_name, runs_of_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.gpu.kv_pool import KVPool
    from zse.device.gpu import Event, Gpu, HostBlock, Stream
    from zse.models.spec import ModelSpec

_RING = 3
_BUFFER_BYTES = 8 << 20
"""Pinning takes half a second a GB, so buffers are few and small, and go when the copies have."""


def images_of(spec: ModelSpec, pool: KVPool, block_size: int) -> KVImages:
    """Return how the blocks of a pool lie outside of it."""
    layout = pool.layout
    sizes = [0] * (1 + len(pool.windows))
    for index, layer in layout.layers.items():
        sizes[layout.groups.of_layer[index]] += sum(
            length for _, length in layer.pieces(pool.layers[index])
        )
    dtype = named({index: layer.dtype for index, layer in layout.layers.items()})
    name = layout_name("gpu", spec, layout.groups, dtype=dtype, block_size=block_size)
    return KVImages(layout=name, block_bytes=tuple(sizes))


class BlockCopies:
    """Copies of one call, one way; ``finish`` waits for them and gives the buffers back."""

    def __init__(self, gpu: Gpu, pool: KVPool, stream: Stream) -> None:
        self._gpu = gpu
        self._pool = pool
        self._stream = stream
        self._buffers: list[tuple[HostBlock, Event]] = []
        self._turn = 0

    def write(self, group: int, blocks: Sequence[int], image: memoryview, first: int) -> None:
        """Enqueue copies of blocks of an image, from its ``first`` on, into the pool's."""
        end = 0
        runs = runs_of_blocks(blocks)
        block_bytes = sum(length for _, length in self._pieces(group))
        num_blocks = len(image) // block_bytes if block_bytes else 0
        for address, length in self._pieces(group):
            start, end = end + first * length, end + num_blocks * length
            for place, block, count in runs:
                source = start + place * length
                self._send(address + block * length, image[source : source + count * length])

    def read(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        """Fill an image with blocks of the pool; they are there when this returns."""
        end = 0
        for address, length in self._pieces(group):
            for _, block, count in runs_of_blocks(blocks):
                start, end = end, end + count * length
                self._fetch(address + block * length, image[start:end])

    def finish(self) -> None:
        """Wait for what was enqueued, and give the buffers back."""
        self._stream.synchronize()
        for buffer, event in self._buffers:
            buffer.free()
            event.destroy()
        self._buffers = []

    def _pieces(self, group: int) -> Iterator[tuple[int, int]]:
        """Yield the address of each tensor of a group's layers, and the bytes of a block in it."""
        layout = self._pool.layout
        for index, layer in sorted(layout.layers.items()):
            if layout.groups.of_layer[index] == group:
                yield from layer.pieces(self._pool.layers[index])

    def _send(self, address: int, data: memoryview) -> None:
        for start in range(0, len(data), _BUFFER_BYTES):
            part = data[start : start + _BUFFER_BYTES]
            buffer, event = self._next()
            buffer.view[: len(part)] = part
            self._gpu.copy_to_device(address + start, buffer.address, len(part), self._stream)
            event.record(self._stream)

    def _fetch(self, address: int, data: memoryview) -> None:
        for start in range(0, len(data), _BUFFER_BYTES):
            part = data[start : start + _BUFFER_BYTES]
            buffer, event = self._next()
            self._gpu.copy_to_host(buffer.address, address + start, len(part), self._stream)
            event.record(self._stream)
            event.synchronize()
            part[:] = buffer.view[: len(part)]

    def _next(self) -> tuple[HostBlock, Event]:
        """Return a buffer that no copy uses any more, and the event that tells of its next one."""
        if len(self._buffers) < _RING:
            pair = self._gpu.allocate_host(_BUFFER_BYTES), self._gpu.create_event()
            self._buffers.append(pair)
            return pair
        self._turn = (self._turn + 1) % _RING
        buffer, event = self._buffers[self._turn]
        event.synchronize()
        return buffer, event
