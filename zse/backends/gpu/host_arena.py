"""Pinned host memory for KV blocks that left a GPU's pool; copies go with the engine's stream.

Memory is pinned a slab at a time by a thread of its own, which begins with the first block that
leaves: a gigabyte takes half a second, and nobody waits for it. A slab has piece by piece (keys,
values, scales of each layer) a slot behind the other, as the pool has its blocks: neighbours there
that become neighbours here are one copy. A copy stands in the stream between the step that wrote a
block and the one that writes it next, or reads it: so nothing has to be waited for.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from zse.errors import ZSEError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.backends.gpu.kv_pool import KVPool
    from zse.device.gpu import Gpu, HostBlock, Stream

_LOG = logging.getLogger("zse.backends")
_SLAB_BYTES = 256 << 20


class HostArena:
    """See ``zse.kv.host_tier.HostBlocks``; of the layers that keep whole sequences.

    Args:
        gpu: Whose pool it is.
        pool: Where blocks come from.
        stream: What steps are put into.
        length_bytes: Memory of the host, at most.
        slab_bytes: What is pinned at once.
    """

    def __init__(
        self,
        gpu: Gpu,
        pool: KVPool,
        stream: Stream,
        length_bytes: int,
        slab_bytes: int = _SLAB_BYTES,
    ) -> None:
        self._gpu = gpu
        self._stream = stream
        self._pieces: list[tuple[int, int]] = []
        """Address in the pool, and bytes of a block there."""
        self.use_pool(pool)
        block_bytes = sum(length for _, length in self._pieces)
        self._block_bytes = block_bytes
        self.most_slots = length_bytes // block_bytes
        self._slab_slots = max(1, min(slab_bytes // block_bytes, self.most_slots))
        """Of every slab but the last, which has what is left."""
        self._slabs: list[HostBlock] = []
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def use_pool(self, pool: KVPool) -> None:
        """Copy from and to a pool of the same layout from now on."""
        layout = pool.layout
        self._pieces = [
            piece
            for index, layer in sorted(layout.layers.items())
            if layout.groups.of_layer[index] == 0
            for piece in layer.pieces(pool.layers[index])
        ]

    def open_slots(self) -> int:
        """Begin to pin memory in the background if nobody has; return how many slots are pinned."""
        if self._thread is None and self.most_slots:
            self._begin_pinning()
        return min(len(self._slabs) * self._slab_slots, self.most_slots)

    @property
    def length_bytes(self) -> int:
        return sum(slab.length_bytes for slab in self._slabs)

    def keep(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._copy(blocks, slots, self._send_to_host)

    def bring(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        self._copy(blocks, slots, self._send_to_device)

    def wait_until_pinned(self) -> None:
        """Wait for all of the memory, or for what there is of it."""
        if self.open_slots() < self.most_slots and self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Give the memory back; the stream must have come to its end."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
        for slab in self._slabs:
            slab.free()
        self._slabs = []

    def _begin_pinning(self) -> None:
        thread = threading.Thread(target=self._pin, name="zse-pinning", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # steps go on without host memory
            self.most_slots = 0
            _LOG.warning("prefixes get no host memory: %s", error)
        else:
            self._thread = thread

    def _pin(self) -> None:
        try:
            self._gpu.make_current()
            while (left := self.most_slots - len(self._slabs) * self._slab_slots) > 0:
                if self._is_closed.is_set():
                    return
                slots = min(left, self._slab_slots)
                self._slabs.append(self._gpu.allocate_host(slots * self._block_bytes))
        except ZSEError as error:
            self.most_slots = len(self._slabs) * self._slab_slots
            _LOG.warning("prefixes get %d blocks of host memory: %s", self.most_slots, error)

    def _copy(
        self,
        blocks: Sequence[int],
        slots: Sequence[int],
        send: Callable[[int, int, int], None],
    ) -> None:
        self._gpu.make_current()
        for block, slot, count in runs_of_pairs(blocks, slots, self._slab_slots):
            number, place = divmod(slot, self._slab_slots)
            slab = self._slabs[number]
            at, room = slab.address, slab.length_bytes // self._block_bytes
            for address, length in self._pieces:
                send(address + block * length, at + place * length, count * length)
                at += room * length

    def _send_to_host(self, device: int, host: int, length_bytes: int) -> None:
        self._gpu.copy_to_host(host, device, length_bytes, self._stream)

    def _send_to_device(self, device: int, host: int, length_bytes: int) -> None:
        self._gpu.copy_to_device(device, host, length_bytes, self._stream)


def runs_of_pairs(
    blocks: Sequence[int], slots: Sequence[int], slab_slots: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the first block and slot, and the length, of runs that are neighbours on both sides."""
    first, slot, count = -1, -1, 0
    for block, own in sorted(zip(blocks, slots, strict=True)):
        goes_on = block == first + count and own == slot + count and own % slab_slots
        if count and goes_on:
            count += 1
            continue
        if count:
            yield first, slot, count
        first, slot, count = block, own, 1
    if count:
        yield first, slot, count
