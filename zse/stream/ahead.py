"""Prefetches the first chunks of a model while the device is still being opened.

Opening a GPU takes 0.2 s, during which a disk or a network can already deliver. The bytes go to
ordinary memory, since pinning needs the device. Chunks in the page cache are not prefetched, and a
chunk whose prefetch has not begun when the loader asks for it is read by the loader.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.device.loader import structs
from zse.device.loader.structs import AheadState
from zse.stream.options import options_for
from zse.stream.plan import chunks_of
from zse.stream.turns import short_turns

if TYPE_CHECKING:
    from zse.stream.placement import Placement
    from zse.stream.source import ByteSource

AHEAD_BYTES = 512 << 20


class AheadSource:
    """A source that prefetches. It replaces the source it is made from, and closes it.

    Args:
        source: Where the bytes are.
        placement: What of the file goes where.
        num_bytes: Memory for prefetched bytes, at most.
        threads: Concurrent reads; as many as the loader has when not given.
        chunk_bytes: The loader's chunk size: the loader finds only whole chunks of its own.
    """

    def __init__(
        self,
        source: ByteSource,
        placement: Placement,
        *,
        num_bytes: int = AHEAD_BYTES,
        threads: int | None = None,
        chunk_bytes: int | None = None,
    ) -> None:
        self._source = source
        self._lock = threading.Lock()
        usual = options_for(source)
        threads, chunk_bytes = threads or usual.threads, chunk_bytes or usual.chunk_bytes
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="zse-ahead")
        self._held: dict[tuple[int, int], Future[mmap.mmap]] = {}
        for chunk in chunks_of(placement, chunk_bytes):
            num_bytes -= chunk.length_bytes
            if num_bytes < 0:
                break
            key = (chunk.offset_bytes, chunk.length_bytes)
            if chunk.num_pieces == 1 and source.is_slow(*key):
                self._held[key] = self._pool.submit(self._read, *key)

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def kind(self) -> str:
        return self._source.kind

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        return self._source.is_slow(offset_bytes, length_bytes)

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view``; see ``ByteSource``. A prefetched chunk is given out once."""
        with self._lock:
            ahead = self._held.pop((offset_bytes, len(view)), None)
        if ahead is None or ahead.cancel():
            self._source.read_into(offset_bytes, view)
            return
        with ahead.result() as area:
            _copy(view, area)

    def hand_over(self) -> dict[tuple[int, int], HandedOver]:
        """Return the chunks that are prefetched or being read, by their offset and length.

        The caller closes each. Chunks whose prefetch has not begun are not among them.
        """
        with self._lock:
            held, self._held = self._held, {}
        return {key: HandedOver(ahead) for key, ahead in held.items() if not ahead.cancel()}

    @property
    def source(self) -> ByteSource:
        """What it is made from."""
        return self._source

    def check_unchanged(self) -> None:
        self._source.check_unchanged()

    def interrupt(self) -> None:
        self._source.interrupt()

    def close(self) -> None:
        """Drop the prefetched chunks and close the source; reads still running are made to fail."""
        self.detach().close()

    def detach(self) -> ByteSource:
        """Drop the prefetched chunks as ``close`` does, but return the source, still open."""
        if not all(ahead.cancel() or ahead.done() for ahead in self._held.values()):
            self._source.interrupt()
        self._pool.shutdown(cancel_futures=True)
        for ahead in self._held.values():
            if not ahead.cancelled() and ahead.exception() is None:
                ahead.result().close()
        self._held.clear()
        return self._source

    def _read(self, offset_bytes: int, length_bytes: int) -> mmap.mmap:
        area = mmap.mmap(-1, length_bytes)  # page-aligned, as O_DIRECT wants it
        try:
            with memoryview(area) as view, short_turns():
                self._source.read_into(offset_bytes, view)
        except BaseException:
            with contextlib.suppress(BufferError):  # the error's frames may still look at it
                area.close()
            raise
        return area


class HandedOver:
    """A prefetched chunk for native threads: a ``struct zse_ahead`` of ``loader.h``."""

    def __init__(self, ahead: Future[mmap.mmap]) -> None:
        self._ahead = ahead
        self._struct = structs.Ahead(state=AheadState.IS_COMING)
        self.address = ctypes.addressof(self._struct)
        ahead.add_done_callback(self._note)

    def close(self) -> None:
        """Free the memory, which nothing may use any more; waits for a read that still runs."""
        if self._ahead.exception() is None:
            self._ahead.result().close()

    def _note(self, ahead: Future[mmap.mmap]) -> None:
        if ahead.exception() is not None:
            self._struct.state = AheadState.NOT_AHEAD  # the loader reads it, and raises the error
            return
        self._struct.memory = ctypes.addressof(ctypes.c_char.from_buffer(ahead.result()))
        self._struct.state = AheadState.IS_HERE


def _copy(view: memoryview, area: mmap.mmap) -> None:
    # Through ctypes, which lets other threads run; an assignment to the view does not.
    target = (ctypes.c_char * len(view)).from_buffer(view)
    source = (ctypes.c_char * len(view)).from_buffer(area)
    ctypes.memmove(target, source, len(view))
    del source  # a mapping cannot be closed while a buffer of it is exported
