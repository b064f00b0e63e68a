"""Copies of layers in pinned memory, made in the background: what a GPU fetches fastest.

Pinning takes as long as several passes over the weights, so nobody waits for it: a layer streams
from the file until its copy is complete. Memory comes in pieces, so that no call of the driver
holds up the others for long.
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
    """Copies of layers, the first ones of a pass first, as far as ``limit_bytes`` go.

    Args:
        source: Where the bytes are; it stays open until ``close``.
        piece_bytes: Size of what is pinned at a time.
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
        """Begin with the layers of a pass that have no copies yet.

        Their chunks are one run of the file each. Without a thread to spare nothing is pinned, nor
        while others are.
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
        """Wait until all that may be pinned is."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def num_layers(self) -> int:
        """Layers whose copies are complete."""
        return len(self._copies)

    def has(self, name: str) -> bool:
        """Whether the copy of a layer is complete; it stays then."""
        return name in self._copies

    def copy(
        self, name: str, chunks: Sequence[Chunk], destination_address: int, stream: Stream
    ) -> None:
        """Put the copies of a layer to its slot into a stream."""
        target = destination_address + chunks[0].destination_offset_bytes
        left = sum(chunk.length_bytes for chunk in chunks)
        for piece in self._copies[name]:
            length = min(left, piece.length_bytes)
            self._gpu.copy_to_device(target, piece.address, length, stream)
            target += length
            left -= length

    def close(self) -> None:
        """Give the memory back; no copy of it may be in flight."""
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
        except ZSEError as error:  # the file is read again by whoever needs the layer
            _LOG.warning("no more layers are pinned: %s", error)
        _LOG.info(
            "%d of %d layers that stream have pinned copies, %s",
            len(self._copies),
            len(plan.groups),
            memory_text(self.held_bytes),
        )

    def _pin(self, offset_bytes: int, length_bytes: int) -> list[HostBlock] | None:
        """Return a copy of a run of the file; None where it is stopped or memory is short."""
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
