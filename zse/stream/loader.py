"""Loads the tensors of a file into one block of device memory, as fast as file and device allow.

A few threads each read into pinned buffers (releasing the GIL) and copy from them on streams of
their own. Groups arrive in execution order, so that computing can begin with the first layers while
the last ones are still being read.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from zse.device.loader.library import Areas, load_library
from zse.errors import LoadCancelledError, StoreError, UsageError
from zse.format.container import check_sha256
from zse.format.errors import Rule
from zse.stream.ahead import AheadSource
from zse.stream.copier import ChunkCopier
from zse.stream.native import NativeLoad
from zse.stream.options import LoaderOptions, LoadReport, options_for
from zse.stream.plan import ReadPlan, plan_reads
from zse.stream.progress import HeldChunks, LoadProgress
from zse.stream.source import LocalSource
from zse.stream.turns import short_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.gpu import Gpu
    from zse.device.loader.library import LoaderLibrary
    from zse.stream.placement import Placement
    from zse.stream.plan import Chunk
    from zse.stream.source import ByteSource


class RegionLoad:
    """A running load. ``wait`` must be called in the end, also if its result is not needed.

    Args:
        source: Where the bytes are; it stays open.
        destination_address: The device's block; it must outlive the load.
    """

    def __init__(
        self,
        gpu: Gpu,
        source: ByteSource,
        plan: ReadPlan,
        destination_address: int,
        options: LoaderOptions | None = None,
    ) -> None:
        options = options or options_for(source)
        self._gpu = gpu
        self._source = source
        self._plan = plan
        self._destination = destination_address
        self._options = options
        self._progress = LoadProgress(plan, by_group=options.is_verified)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._started = time.perf_counter()
        self._ended = self._started
        count = min(options.threads, len(plan.chunks))
        self._threads = [
            threading.Thread(target=self._run, name=f"zse-load-{index}", daemon=True)
            for index in range(count)
        ]
        self._start_threads()

    def _start_threads(self) -> None:
        wanted, self._threads = self._threads, []
        try:
            for thread in wanted:
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.cancel()
            self._join()  # the caller frees the memory that they copy to
            raise StoreError(
                f"{len(self._threads)} of {len(wanted)} threads that load {self._source.name} "
                f"could be started: {error}",
                hint="Allow this process more threads (ulimit -u, the container's pids limit).",
            ) from error

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes that are in device memory, and the bytes of the whole load."""
        return self._progress.landed_bytes, self._plan.total_bytes

    def cancel(self) -> None:
        """Stop soon; ``wait`` then raises ``LoadCancelledError``."""
        self._stop(LoadCancelledError(f"loading {self._source.name} was stopped"))

    def wait_for_group(self, group: int) -> None:
        """Wait until a group of the plan is in device memory, and verified if groups are.

        Any thread may call this, also beside ``wait``; raises as ``wait`` does.

        Args:
            group: Its index in ``ReadPlan.groups``.
        """
        if not self._progress.wait_for(group):
            assert self._progress.error is not None
            raise self._progress.error

    def wait(self) -> LoadReport:
        """Wait until everything is in device memory and every thread has ended.

        Raises:
            FormatError, SourceChangedError, StoreError: The source changed or failed.
            FormatError: A group differs from its digest.
            DeviceError: The device failed.
            LoadCancelledError: ``cancel`` was called.
        """
        try:
            self._join()
        except BaseException:
            self.cancel()
            self._join()  # the caller frees the block that the threads copy to
            raise
        if self._progress.error is not None:
            raise self._progress.error
        self._source.check_unchanged()
        count = len(self._threads)
        return LoadReport(
            num_bytes=self._plan.total_bytes,
            seconds=self._ended - self._started,
            source=self._source.kind,
            threads=count,
            phase_seconds={phase: spent / count for phase, spent in sorted(self._seconds.items())},
        )

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        held = HeldChunks(self._progress.landed)
        copier = ChunkCopier(
            self._gpu,
            self._source,
            self._destination,
            buffer_bytes=self._plan.largest_chunk_bytes,
            num_buffers=self._options.buffers_per_thread,
            landed=held.landed,
        )
        try:
            self._gpu.make_current()
            try:
                with short_turns():
                    self._copy_all(copier, held)
            finally:
                copier.close()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            self._stop(error)
        with self._lock:
            for phase, spent in copier.seconds.items():
                self._seconds[phase] += spent

    def _copy_all(self, copier: ChunkCopier, held: HeldChunks) -> None:
        while (work := self._progress.next_work()) is not None:
            if self._options.is_verified:
                self._copy_checked(copier, work, held)
            else:
                for chunk in work:
                    copier.copy(chunk)
        if self._progress.error is None:
            copier.finish()
        with self._lock:  # before the buffers are freed, which takes a while
            self._ended = max(self._ended, time.perf_counter())

    def _copy_checked(
        self, copier: ChunkCopier, chunks: tuple[Chunk, ...], held: HeldChunks
    ) -> None:
        """Copy and verify a group; read it again if the source can get the bytes elsewhere."""
        group = self._plan.groups[chunks[0].group]
        where = f"group {group.name} of {self._source.name}"
        distrust = getattr(self._source, "distrust", None)
        held.hold(chunks[0].group)
        while True:
            digest = hashlib.sha256()
            for chunk in chunks:
                if self._progress.error is not None:
                    return
                copier.copy(chunk, digest.update)
            if digest.hexdigest() == group.sha256 or distrust is None:
                break
            copier.finish()
            held.forget()
            if not distrust(chunks[0].offset_bytes, sum(each.length_bytes for each in chunks)):
                break
        check_sha256(where, digest.hexdigest(), group.sha256)
        held.let_go()

    def _stop(self, error: BaseException) -> None:
        if self._progress.fail(error):
            self._source.interrupt()


def begin_load(
    gpu: Gpu,
    source: ByteSource,
    plan: ReadPlan,
    destination_address: int,
    options: LoaderOptions | None = None,
    *,
    areas: Areas | None = None,
) -> RegionLoad | NativeLoad:
    """Start a load: by native threads for a local file that is not verified, else by Python's.

    The arguments are those of ``RegionLoad``; ``areas`` is what ``begin_areas`` returned.
    """
    options = options or options_for(source)
    file = source.source if isinstance(source, AheadSource) else source
    library = _library_for(file, options)
    if library is not None and isinstance(file, LocalSource):
        functions = gpu.copy_functions()
        if functions is not None:
            local = source if isinstance(source, AheadSource) else file
            return NativeLoad(
                library,
                functions,
                local,
                file,
                plan,
                destination_address,
                options,
                areas=areas,
            )
    if areas is not None:
        areas.close()
    return RegionLoad(gpu, source, plan, destination_address, options)


def begin_areas(
    source: ByteSource, plan: ReadPlan, options: LoaderOptions | None = None
) -> Areas | None:
    """Start to make memory for the buffers of a load, before there is a device.

    Returns:
        What the load takes over; the caller closes it if no load is started. None if the load will
        not use any.
    """
    options = options or options_for(source)
    file = source.source if isinstance(source, AheadSource) else source
    library = _library_for(file, options)
    if library is None:
        return None
    count = min(options.threads, len(plan.chunks)) * options.buffers_per_thread
    return Areas(library, count=count, length_bytes=max(plan.largest_chunk_bytes, 1))


def _library_for(file: ByteSource, options: LoaderOptions) -> LoaderLibrary | None:
    is_plain = isinstance(file, LocalSource) and not options.is_verified
    return load_library() if is_plain else None


def plan_load(
    source: ByteSource,
    placement: Placement,
    options: LoaderOptions | None = None,
    groups: Sequence[str] | None = None,
) -> ReadPlan:
    """Plan a load into a block of ``placement.length_bytes`` bytes; it needs no device yet.

    Args:
        source: Where the bytes are.
        placement: What of the file goes where.
        options: How; what suits the source when not given.
        groups: Load only these, each to its place in the block.

    Raises:
        UsageError: Parts of groups cannot be checked.
        FormatError: The file ends before its tensors.
    """
    options = options or options_for(source)
    plan = plan_reads(placement, groups=groups, chunk_bytes=options.chunk_bytes)
    if options.is_verified and not all(group.sha256 for group in plan.groups):
        raise UsageError(
            f"parts of groups of {source.name} cannot be checked: its digests are of whole groups",
            hint="Check the file as a whole: zse inspect --verify.",
        )
    if plan.end_bytes > source.size_bytes:
        raise Rule.FILE_SHRANK(
            f"{source.name} has {source.size_bytes} bytes; its header says that the tensors end "
            f"at byte {plan.end_bytes}"
        )
    return plan
