"""A GPU backend's blocks of the KV pool: what of them leaves the pool, and comes back to it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from zse.backends.gpu.kinds import block_copies_of, host_arena_of, images_of, state_pool_of
from zse.backends.gpu.kv_pool import BLOCK_SIZE, KVPool
from zse.backends.gpu.memory import SequenceMemory
from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.gpu.block_copies import BlockCopies
    from zse.backends.gpu.host_arena import HostArena
    from zse.backends.gpu.memory import DeviceMemory
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.kv_images import KVImages
    from zse.backends.states import StateLayout
    from zse.device.gpu import Gpu, Stream


class PooledBlocks:
    """See ``zse.backends.operations.Backend``, of which this is what concerns blocks."""

    block_size = BLOCK_SIZE
    states: StateLayout
    _model: DeviceModel
    _gpu: Gpu
    _stream: Stream
    _memory: DeviceMemory
    _arena: HostArena | None = None

    def new_cache(self, num_blocks: int) -> SequenceMemory:
        self._gpu.make_current()
        pool = self._memory.sequences.cache
        num_groups = 1 + len(pool.windows)
        return SequenceMemory(
            cache=KVPool(self._gpu, pool.layout, [num_blocks] * num_groups),
            states=state_pool_of(self._gpu, self.states, 1),
        )

    def release_cache(self, cache: SequenceMemory) -> None:
        self._stream.synchronize()
        cache.close()

    def _smaller_pool(self, num_blocks: int, least_blocks: int) -> KVPool:
        """Give the pool back, and return one of so many blocks, or of fewer.

        Raises:
            DeviceError: There is not even memory for ``least_blocks``.
        """
        old = self._memory.sequences.cache
        old.close()
        layout = old.layout
        while True:
            try:
                return KVPool(self._gpu, layout, layout.groups.num_blocks(num_blocks))
            except DeviceError as error:
                if not error.is_out_of_memory or num_blocks <= least_blocks:
                    raise
                num_blocks = max(least_blocks, num_blocks * 3 // 4)

    def host_blocks(self, length_bytes: int) -> HostArena:
        """Return host memory for blocks of the pool; it goes with the backend."""
        cache = self._memory.sequences.cache
        self._arena = host_arena_of(self._gpu, cache, self._stream, length_bytes)
        return self._arena

    @property
    def kv_images(self) -> KVImages:
        return images_of(self._model.spec, self._memory.sequences.cache, self.block_size)

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        self.kv_images.check(group, len(blocks), image)
        with self._block_copies() as copies:
            copies.read(group, blocks, image)

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        self.kv_images.check(group, len(blocks), image, first)
        with self._block_copies() as copies:
            copies.write(group, blocks, image, first)

    @contextmanager
    def _block_copies(self) -> Iterator[BlockCopies]:
        self._gpu.make_current()
        copies = block_copies_of(self._gpu, self._memory.sequences.cache, self._stream)
        try:
            yield copies
        finally:
            copies.finish()

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Keep all memory: a GPU's pool is taken whole, so that others know what is left."""

    def _close_host_blocks(self) -> None:
        """Give the host memory back, if there is some; work in flight ends first."""
        if self._arena is not None:
            self._gpu.make_current()
            self._stream.synchronize()
            self._arena.close()
            self._arena = None  # the model that takes the pool over asks for its own
