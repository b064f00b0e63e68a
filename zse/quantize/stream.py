"""Streams tensors through quantization, a few rows at a time, in bounded memory.

Worker threads read and quantize chunks of rows; the calling thread writes them in order, while
those of the next tensors are on their way. A chunk
fits in a core's cache, which matters more than anything else to the speed of many passes. What is
in memory is a few chunks and the scales of one tensor, whatever the size of the model. On a GPU
chunks are larger, for there it is the number of operations that takes time.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING, Self

import torch

from zse.errors import ConversionError
from zse.format.as_torch import bytes_from
from zse.quantize.packed_rows import read_packed
from zse.quantize.place_of_work import CPU, within_memory_of
from zse.quantize.scheme import quantize_rows
from zse.quantize.source_rows import read_rows, rows_together
from zse.quantize.ways import Lanes, Plain
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from zse.format.layout import PlannedTensor
    from zse.format.writer import ZSEWriter
    from zse.models.weights import Source, WeightSpec
    from zse.quantize.calibrate.rounding import Rounding
    from zse.quantize.checkpoint import Checkpoint
    from zse.quantize.ways import Way

QUANTIZED_CHUNK_ELEMENTS = 256 * 1024
PLAIN_CHUNK_ELEMENTS = 4 * 1024 * 1024
CALIBRATED_CHUNK_ELEMENTS = 8 * 1024 * 1024
"""Each input's weights of many rows are rounded together there."""
GPU_CHUNK_ELEMENTS = 32 * 1024 * 1024
"""1 GB with all that a scheme makes of it on its way: that is hundreds of operations, whose
launches take longer than a GPU does for fewer numbers."""
GPU_CALIBRATED_CHUNK_ELEMENTS = 128 * 1024 * 1024
MAX_WORKERS = 16
GPU_WORKERS = 4
"""Enough to read the next chunks while one is computed and one is written; more stand in line for
the interpreter, which every launch needs."""


@record
class Work:
    """A tensor that is to be written."""

    weight: WeightSpec
    planned: PlannedTensor
    rounding: Rounding | None = None
    """What minds what its inputs were, if anything."""


@record
class _Chunk:
    work: Work
    source: Source
    start: int
    stop: int
    first_row: int
    """Row of the joined tensor."""

    @property
    def is_last(self) -> bool:
        """Whether no row of the tensor comes behind it."""
        return self.first_row + self.stop - self.start == sum(self.work.weight.piece_rows)


class TensorStream:
    """Moves tensors from a checkpoint to a writer. Use as a context manager.

    Args:
        on_bytes: Called with the number of checkpoint bytes that were converted since.
        num_workers: Threads; 0 means one for each CPU that this process may use.
        device: Where schemes are computed.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        writer: ZSEWriter,
        on_bytes: Callable[[int], None],
        *,
        num_workers: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self._device = device
        self._way: Way = Plain(device)
        # What rounding knows of a tensor's inputs was made on the stream that all share.
        self._own_way: Way = Lanes(device) if device.type == "cuda" else self._way
        self._checkpoint = checkpoint
        checkpoint.read_into(self._own_way.memory)
        self._writer = writer
        self._on_bytes = on_bytes
        available = len(os.sched_getaffinity(0))
        most = MAX_WORKERS if device.type == "cpu" else GPU_WORKERS
        self._num_workers = min(num_workers or available, most)
        self._pool = ThreadPoolExecutor(
            self._num_workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def __enter__(self) -> Self:
        # Torch must not start threads in each small operation: ours run beside each other.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def write(self, tensors: Iterable[Work]) -> None:
        """Convert tensors and write their parts, in their order.

        Raises:
            ConversionError: A value cannot be stored in the scheme.
            CheckpointError: A file is shorter than its header says.
            DiskFullError: No room is left.
        """
        late: dict[str, list[torch.Tensor]] = {}
        for chunk, parts in self._converted(tensors):
            name = chunk.work.weight.name
            (role, data), *others = parts.items()
            # The first part is streamed; scales follow it in the file, so they wait here.
            self._writer.write_part(name, role, bytes_from(data), row_offset=chunk.first_row)
            for other_role, values in others:
                late.setdefault(other_role, []).append(values)
            length_bytes = self._checkpoint.length_bytes(chunk.source)
            self._on_bytes(length_bytes // chunk.source.rows * (chunk.stop - chunk.start))
            if chunk.is_last:
                self._write_late(name, late)

    def _write_late(self, name: str, late: dict[str, list[torch.Tensor]]) -> None:
        for role, pieces in late.items():
            self._writer.write_part(name, role, bytes_from(torch.cat(pieces)))
        late.clear()

    def _converted(
        self, tensors: Iterable[Work]
    ) -> Iterator[tuple[_Chunk, dict[str, torch.Tensor]]]:
        waiting: deque[tuple[_Chunk, Future[dict[str, torch.Tensor]]]] = deque()
        try:
            for chunk in (chunk for work in tensors for chunk in self._chunks(work)):
                waiting.append((chunk, self._pool.submit(self._convert, chunk)))
                if len(waiting) > 2 * self._num_workers:
                    oldest, future = waiting.popleft()
                    yield oldest, future.result()
            while waiting:
                oldest, future = waiting.popleft()
                yield oldest, future.result()
        finally:
            for _, future in waiting:
                future.cancel()

    def _chunks(self, work: Work) -> Iterator[_Chunk]:
        """Cut a tensor's rows; no chunk has rows of two matrices of a stack."""
        first_row, elements = 0, self._chunk_elements(work)
        for source in work.weight.pieces():
            together = rows_together(source)
            rows_per_chunk = max(1, elements // (source.columns * together)) * together
            member_rows = max(source.rows // prod(source.shape[:-2]), together)
            for start in range(0, source.rows, member_rows):
                end = min(start + member_rows, source.rows)
                for row in range(start, end, rows_per_chunk):
                    stop = min(row + rows_per_chunk, end)
                    yield _Chunk(
                        work=work, source=source, start=row, stop=stop, first_row=first_row + row
                    )
            first_row += source.rows

    def _chunk_elements(self, work: Work) -> int:
        on_cpu = self._device.type == "cpu"
        if work.planned.scheme.is_plain:
            return PLAIN_CHUNK_ELEMENTS
        if work.rounding is not None:
            return CALIBRATED_CHUNK_ELEMENTS if on_cpu else GPU_CALIBRATED_CHUNK_ELEMENTS
        return QUANTIZED_CHUNK_ELEMENTS if on_cpu else GPU_CHUNK_ELEMENTS

    def _convert(self, chunk: _Chunk) -> dict[str, torch.Tensor]:
        work, source = chunk.work, chunk.source
        if source.packing is not None:
            return read_packed(self._checkpoint, source, chunk.start, chunk.stop)
        rows = read_rows(self._checkpoint, work.weight, source, chunk.start, chunk.stop)
        try:
            if work.planned.scheme.is_plain:
                return quantize_rows(work.planned.scheme, rows)
            way = self._own_way if work.rounding is None else self._way
            with within_memory_of(self._device), way.open():
                return way.back(self._quantized(chunk, way.there(rows).float()))
        except ConversionError as error:
            raise ConversionError(
                f"tensor {work.planned.name} ({source.name}, rows {chunk.start} to {chunk.stop}): "
                f"{error.message}",
                hint=error.hint,
            ) from error

    @staticmethod
    def _quantized(chunk: _Chunk, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        work = chunk.work
        if work.rounding is None:
            return quantize_rows(work.planned.scheme, rows, work.planned.group_size)
        member = chunk.first_row * work.rounding.num_members // work.weight.shape[0]
        return work.rounding.quantize(work.planned, rows, member)
