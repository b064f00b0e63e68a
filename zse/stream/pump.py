"""Copies the streamed layers into their slots over and over, ahead of the computing thread.

Threads read a layer from the file in chunks and copy them to the device; a layer that has a pinned
copy in host memory is copied from there by one thread. The computing thread waits on the host until
the next layer is in its slot, launches its kernels, and records an event that tells when the slot
may be overwritten. Copies run ahead across the end of a pass: the first layers of the next pass
arrive while the last ones of this pass are computed. The device itself never waits for a copy that
has not been enqueued yet: with a single hardware queue, that wait would block the copy behind it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from zse.errors import StoreError
from zse.records import record
from zse.stream.copier import ChunkCopier
from zse.stream.turns import short_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.gpu import Event, Gpu, Stream
    from zse.stream.pinned import PinnedCopies
    from zse.stream.plan import Chunk, ReadPlan
    from zse.stream.source import ByteSource

STALL_SECONDS = 60.0
"""A layer that has not arrived after this time counts as lost: its disk or network hangs."""


@record
class PumpOptions:
    """How layers are brought."""

    threads: int = 12
    """Threads that read layers without a pinned copy. Layers with one occupy a thread per slot."""
    stall_seconds: float = STALL_SECONDS


class _Turn:
    """One pass's use of a slot: a layer that is being copied into it, or is there."""

    def __init__(self, layer: int, chunks: Sequence[Chunk], *, is_pinned: bool) -> None:
        self.layer = layer
        self.chunks = chunks
        self.is_pinned = is_pinned
        self.next_chunk = 0
        self.left = 1 if is_pinned else len(chunks)

    @property
    def is_handed_out(self) -> bool:
        return self.next_chunk >= (1 if self.is_pinned else len(self.chunks))


class LayerPump:
    """The threads that fill the slots from a source. Layers are numbered in execution order.

    Args:
        source: Where the bytes are; it stays open.
        plan: The reads of one pass: a group for each layer.
        destination_address: The device address that the chunks' destination offsets are added to.
        slots: Number of layers that fit at once; the k-th layer goes to slot ``k % slots``.
        pinned: The pinned copies, of which there may be more as time goes on.
        stream: The stream that the kernels which read the slots are launched on.
    """

    def __init__(
        self,
        gpu: Gpu,
        source: ByteSource,
        plan: ReadPlan,
        destination_address: int,
        *,
        slots: int,
        stream: Stream,
        pinned: PinnedCopies | None = None,
        options: PumpOptions | None = None,
    ) -> None:
        self._gpu = gpu
        self._source = source
        self._plan = plan
        self._destination = destination_address
        self._options = options or PumpOptions()
        self._pinned = pinned
        self._stream = stream
        self._layers = [group.chunks for group in plan.groups]
        self._slots = min(slots, len(self._layers))
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._turns: dict[int, _Turn] = {}
        """Layers being copied or in their slots, by position: layer k of pass p has the position
        ``p * num_layers + k``."""
        self._next = 0
        """Position whose copy is begun next."""
        self._cursor = 0
        """Position that is computed next."""
        self._error: BaseException | None = None
        self._is_closed = False
        self.waited_seconds = 0.0
        """Total time that the computing thread has waited for layers."""
        self.passed_bytes = 0
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads, which begin to fill the slots.

        Raises:
            StoreError: No thread can be started.
        """
        self._events = [self._gpu.create_event() for _ in range(self._slots)]
        for event in self._events:
            event.record(self._stream)
        count = min(self._options.threads, max(len(chunks) for chunks in self._layers) * 2)
        for index in range(max(count, self._slots)):
            thread = threading.Thread(target=self._run, name=f"zse-stream-{index}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if self._threads:
                    break
                raise StoreError(
                    f"no thread that streams {self._source.name} could be started: {error}",
                    hint="Allow this process more threads (ulimit -u, the container's pids limit).",
                ) from error
            self._threads.append(thread)

    # --- called by the computing thread -----------------------------------------------------------

    def wait_for(self, layer: int) -> None:
        """Wait until a layer is in its slot; skip the remaining layers of a pass that was aborted.

        Raises:
            FormatError, SourceChangedError, StoreError: The file changed, failed or stalled.
            DeviceError: The device failed.
        """
        while self._cursor % len(self._layers) != layer:
            self._wait(self._cursor)
            self.release(self._cursor % len(self._layers))
        self._wait(self._cursor)

    def release(self, layer: int) -> None:
        """Let a layer's slot be overwritten once the kernels launched so far have run."""
        assert self._cursor % len(self._layers) == layer
        self._events[layer % self._slots].record(self._stream)
        with self._changed:
            turn = self._turns.pop(self._cursor)
            self.passed_bytes += sum(chunk.length_bytes for chunk in turn.chunks)
            self._cursor += 1
            self._changed.notify_all()

    def _wait(self, position: int) -> None:
        started = time.monotonic()
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                turn = self._turns.get(position)
                if turn is not None and not turn.left:
                    break
                waited = time.monotonic() - started
                left = self._options.stall_seconds - waited
                if left <= 0:
                    name = self._plan.groups[position % len(self._layers)].name
                    raise StoreError(
                        f"{name} of {self._source.name} has not come for {waited:.0f} seconds",
                        hint="Check the disk or the network file system, then start again.",
                    )
                self._changed.wait(left)
        self.waited_seconds += time.monotonic() - started

    def close(self) -> None:
        """Stop the threads, and wait until they have ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._source.interrupt()
        for thread in self._threads:
            thread.join()
        self._threads = []
        for event in self._events:
            event.destroy()
        self._events = []

    # --- run by the copying threads ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._gpu.make_current()
            with contextlib.ExitStack() as stack:
                stack.enter_context(short_turns())
                lane = _Lane(self._gpu, self._source, self._destination, self._plan)
                stack.callback(lane.close)
                while (work := self._take()) is not None:
                    position, turn, chunk = work
                    self._bring(lane, turn, chunk)
                    self._landed(position)
        except BaseException as error:  # noqa: BLE001 - raised in the computing thread
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _take(self) -> tuple[int, _Turn, Chunk | None] | None:
        """Wait for the next chunk to copy; its chunk is None for a whole layer with a pinned copy.

        Returns None when the pump is closed or has failed.
        """
        with self._changed:
            while not self._is_closed and self._error is None:
                for position, turn in self._turns.items():
                    if not turn.is_handed_out:
                        chunk = None if turn.is_pinned else turn.chunks[turn.next_chunk]
                        turn.next_chunk += 1
                        return position, turn, chunk
                if self._may_begin(self._next):
                    self._begin(self._next)
                    self._next += 1
                else:
                    self._changed.wait()
        return None

    def _may_begin(self, position: int) -> bool:
        """Whether a layer's slot is free: the kernels of the layer before in it were launched."""
        count = len(self._layers)
        layer = position % count
        if position >= self._cursor + self._slots:
            return False
        slot = layer % self._slots
        return all(other % count % self._slots != slot for other in range(self._cursor, position))

    def _begin(self, position: int) -> None:
        layer = position % len(self._layers)
        if layer == 0:
            self._source.check_unchanged()
        group = self._plan.groups[layer]
        is_pinned = self._pinned is not None and self._pinned.has(group.name)
        self._turns[position] = _Turn(layer, group.chunks, is_pinned=is_pinned)
        if len(self._turns) > 1 or not is_pinned:
            self._changed.notify_all()

    def _bring(self, lane: _Lane, turn: _Turn, chunk: Chunk | None) -> None:
        self._events[turn.layer % self._slots].synchronize()
        if chunk is not None:
            lane.copy(chunk)
            return
        assert self._pinned is not None
        self._pinned.copy(
            self._plan.groups[turn.layer].name, turn.chunks, self._destination, lane.stream
        )
        lane.stream.synchronize()

    def _landed(self, position: int) -> None:
        with self._changed:
            turn = self._turns[position]
            turn.left -= 1
            if not turn.left:
                self._changed.notify_all()


class _Lane:
    """One copying thread's pinned buffer and streams, each made when it is first needed."""

    def __init__(
        self, gpu: Gpu, source: ByteSource, destination_address: int, plan: ReadPlan
    ) -> None:
        self._gpu = gpu
        self._stream: Stream | None = None
        self._copier = ChunkCopier(
            gpu,
            source,
            destination_address,
            buffer_bytes=plan.largest_chunk_bytes,
            num_buffers=1,
            landed=lambda _chunk: None,
        )

    @property
    def stream(self) -> Stream:
        self._stream = self._stream or self._gpu.create_stream()
        return self._stream

    def copy(self, chunk: Chunk) -> None:
        """Copy a chunk to the device, and wait until it is there."""
        self._copier.copy(chunk)
        self._copier.finish()

    def close(self) -> None:
        self._copier.close()
        if self._stream is not None:
            self._stream.destroy()
