"""Copies of layers in pinned host memory, made in the background: the fastest source for a GPU.

Pinning takes as long as several passes over the weights, so nothing waits for it: a layer is read
from the file until its pinned copy is complete. Memory is pinned in pieces, so that no call of the
driver blocks other calls for long.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from zse.errors import DeviceError, ZSEError
from zse.units import MIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.gpu import Gpu, HostBlock, Stream
    from zse.stream.plan import Chunk, ReadPlan
    from zse.stream.source import ByteSource

_LOG = logging.getLogger("zse.stream")
PIECE_BYTES = 64 * MIB


class PinnedCopies:
    """Pinned copies of layers, in execution order, as many as fit into ``limit_bytes``.

    Args:
        source: Where the bytes are; it stays open until ``close``.
        piece_bytes: Bytes that are pinned by one call.
    """

    def __init__(
        self,
        gpu: Gpu,
        source: ByteSource,
        limit_bytes: int,
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._gpu = gpu
        self._source = source
        self._limit = limit_bytes
        self._piece_bytes = piece_bytes
        self._copies: dict[str, list[HostBlock]] = {}
        self._is_closed = False
        self.held_bytes = 0
        self._thread: threading.Thread | None = None

    def begin(self, plan: ReadPlan) -> None:
        """Start to copy the layers of a pass that have no copy yet, in a thread.

        Each layer is one contiguous run of the file. Does nothing while an earlier call is still
        at work, or if no thread can be started.
        """
        if self.held_bytes >= self._limit or (self._thread and self._thread.is_alive()):
            return
        thread = threading.Thread(target=self._run, args=(plan,), name="zse-pin", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _LOG.warning("layers are not pinned: %s", error)
            return
        self._thread = thread

    def wait(self) -> None:
        """Wait until the thread has copied all that fits."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def num_layers(self) -> int:
        """Number of layers whose copies are complete."""
        return len(self._copies)

    def has(self, name: str) -> bool:
        """Whether the copy of a layer is complete; it is kept until ``close``."""
        return name in self._copies

    def copy(
        self, name: str, chunks: Sequence[Chunk], destination_address: int, stream: Stream
    ) -> None:
        """Enqueue the copies of a layer to its slot on a stream."""
        target = destination_address + chunks[0].destination_offset_bytes
        left = sum(chunk.length_bytes for chunk in chunks)
        for piece in self._copies[name]:
            length = min(left, piece.length_bytes)
            self._gpu.copy_to_device(target, piece.address, length, stream)
            target += length
            left -= length

    def close(self) -> None:
        """Free the memory; no copy from it may be in flight."""
        self._is_closed = True
        self.wait()
        for pieces in self._copies.values():
            for piece in pieces:
                piece.free()
        self._copies = {}
        self.held_bytes = 0

    def _run(self, plan: ReadPlan) -> None:
        try:
            self._gpu.make_current()
            for group in plan.groups:
                if group.name in self._copies:
                    continue
                length = sum(chunk.length_bytes for chunk in group.chunks)
                if self._is_closed or self.held_bytes + length > self._limit:
                    break
                pieces = self._pin(group.chunks[0].offset_bytes, length)
                if pieces is None:
                    break
                self.held_bytes += length
                self._copies[group.name] = pieces
        except ZSEError as error:  # layers without a copy are read from the file
            _LOG.warning("no more layers are pinned: %s", error)
        _LOG.info(
            "%d of %d layers that stream have pinned copies, %s",
            len(self._copies),
            len(plan.groups),
            memory_text(self.held_bytes),
        )

    def _pin(self, offset_bytes: int, length_bytes: int) -> list[HostBlock] | None:
        """Return a pinned copy of a run of the file; None when closed or short of memory."""
        pieces: list[HostBlock] = []
        try:
            for start in range(0, length_bytes, self._piece_bytes):
                if self._is_closed:
                    break
                length = min(self._piece_bytes, length_bytes - start)
                piece = self._gpu.allocate_host(length)
                pieces.append(piece)
                with piece.view[:length] as view:
                    self._source.read_into(offset_bytes + start, view)
            else:
                return pieces
        except DeviceError as error:
            _LOG.warning("no more memory can be pinned: %s", error)
        except BaseException:
            _free(pieces)
            raise
        _free(pieces)
        return None


def _free(pieces: list[HostBlock]) -> None:
    for piece in pieces:
        piece.free()
