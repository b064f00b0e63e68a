"""The blocks of a runner's pool, as they are outside of steps: read, written, kept, made fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.abilities import KeepsInHost, Shrinkable
from zse.backends.types import MAX_DRAFTS
from zse.errors import UnsupportedModelError, UsageError

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from zse.backends.kv_images import KVImages
    from zse.backends.operations import Backend
    from zse.backends.ranks import Crew
    from zse.kv.host_tier import HostBlocks
    from zse.kv.windows import WindowGroup


class RunnerBlocks:
    """What a ``ModelRunner`` does with whole blocks, under the lock that keeps steps apart."""

    _backend: Backend
    _crew: Crew | None
    _lock: threading.Lock
    num_blocks: int
    windows: Sequence[WindowGroup]

    @property
    def num_checkpoints(self) -> int | None:
        """States that can be kept for later sequences; None where sequences have no states."""
        states = self._backend.states
        return states.num_checkpoints if states.shapes else None

    @property
    def most_drafts(self) -> int:
        """Drafts that a step can check: 0 where states cannot go back behind one that was wrong."""
        states = self._backend.states
        if not states.shapes:
            return MAX_DRAFTS
        return states.num_drafts if self._crew is None else 0

    @property
    def kv_images(self) -> KVImages:
        """What blocks of the pool look like outside of it."""
        return self._backend.kv_images

    def read_blocks(self, group: int, blocks: Sequence[int]) -> bytearray:
        """Return the content of some blocks of a group of layers, as ``kv_images`` says."""
        self._refuse_parts()
        with self._lock:
            image = bytearray(len(blocks) * self._backend.kv_images.block_bytes[group])
            self._backend.read_blocks(group, blocks, memoryview(image))
            return image

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        """Fill blocks, which no step in flight reads, from an image, from its ``first`` block on.

        Raises:
            EngineError: The image does not hold them.
            UnsupportedModelError: Each of several ranks has a part of them.
        """
        self._refuse_parts()
        with self._lock:
            self._backend.write_blocks(group, blocks, image, first=first)

    def host_blocks(self, length_bytes: int) -> HostBlocks:
        """Return host memory for blocks of the pool.

        Raises:
            UsageError: The device keeps its blocks there anyway, or more than blocks is needed to
                go on from a prefix.
        """
        if not isinstance(self._backend, KeepsInHost):
            raise UsageError(
                "prefixes go to host memory from a GPU; on this device they lie there",
                hint="Leave --prefix-host-gib out, and give the KV cache more with --kv-gib.",
            )
        if self.windows or self.num_checkpoints is not None:
            found = "layers with a window" if self.windows else "states beside its blocks"
            raise UsageError(
                f"prefixes of a model that has {found} do not go to host memory",
                hint="Leave --prefix-host-gib out.",
            )
        with self._lock:
            return self._backend.host_blocks(length_bytes)

    def _refuse_parts(self) -> None:
        if self._crew is not None:
            raise UnsupportedModelError(
                "each of several ranks has a part of the keys and values",
                hint="Leave --tensor-parallel out where prefixes are to be kept in files or in "
                "host memory.",
            )

    @property
    def can_shrink(self) -> bool:
        """Whether the pool can become smaller: of a device of its own, where ranks count alike."""
        return self._crew is None and isinstance(self._backend, Shrinkable)

    def shrink(self, num_blocks: int, *, least_blocks: int) -> None:
        """Make the pool smaller; what it holds is lost, and nothing may be in flight.

        Raises:
            DeviceError: There is no memory for ``least_blocks`` any more. The runner is of no use.
        """
        assert isinstance(self._backend, Shrinkable)
        with self._lock:
            self._backend.shrink(num_blocks, least_blocks=least_blocks)
            self.num_blocks, self.windows = self._backend.num_blocks, self._backend.windows
