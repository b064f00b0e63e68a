"""A model on its way to a GPU.

Opening the GPU and moving the weights take most of a start, and need little of Python. So they
begin first, before the engine is imported; a backend is built around them while they run.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.arriving import ArrivingPasses
from zse.backends.gpu.budget import MemoryBudget
from zse.backends.gpu.passes import WholePasses
from zse.device.open import open_gpu
from zse.device.phases import Phases, no_phases
from zse.errors import DeviceError, UsageError, ZSEError
from zse.stream.ahead import AheadSource
from zse.stream.loader import begin_areas, begin_load, plan_load
from zse.stream.opening import source_of
from zse.stream.options import options_for, spread
from zse.stream.placement import WholeFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends import ModelLoad
    from zse.backends.gpu.kv_pool import KVLayout
    from zse.backends.gpu.passes import Passes
    from zse.backends.gpu.retained import Retained
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.backends.gpu.weights import DeviceWeights
    from zse.device.gpu import Gpu, Stream
    from zse.device.loader.library import Areas
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions, StreamOptions
    from zse.stream.options import LoaderOptions, LoadReport
    from zse.stream.peers.beside import PeerMemory
    from zse.stream.peers.copied import Load
    from zse.stream.placement import Placement
    from zse.stream.plan import ReadPlan
    from zse.stream.source import ByteSource

_LOG = logging.getLogger("zse.backends.gpu")
STACK_BYTES = 256
"""Of one thread on the GPU: more than kernels spill, but for heads of 512 columns: for those
the driver takes more when they are first launched."""


class Arrival:
    """Weights that stream into a block of an open GPU's memory.

    Whoever takes it over closes the GPU; the source is closed when its bytes have arrived. All that
    is held takes at most ``allowed_bytes`` of GPU memory, 0 is all.

    Raises:
        DeviceError: The weights do not fit.
    """

    def __init__(
        self,
        gpu: Gpu,
        source: ByteSource,
        placement: Placement,
        plan: ReadPlan,
        *,
        allowed_bytes: int = 0,
        retained: Retained | None = None,
        areas: Areas | None = None,
        options: LoaderOptions | None = None,
        peers: PeerMemory | None = None,
    ) -> None:
        length = placement.length_bytes
        free, _ = gpu.memory()
        self.budget = MemoryBudget(free=free, allowed=allowed_bytes, weights=length)
        self.gpu = gpu
        self.source = source
        self.placement = placement
        self.retained = retained
        """What it goes into; None where everything is made for it."""
        if retained is None:
            self.budget.check()
            self.block = gpu.allocate(length) if peers is None else peers.allocate(gpu, length)
        else:
            self.block = retained.backend.weights
        self._plan = plan
        self._loading = self._copied(peers) or self._begin(plan, options, areas)
        self._waiting = threading.Lock()
        self._report: LoadReport | None = None

    @classmethod
    def into(cls, retained: Retained, reader: ModelFile, *, phases: Phases = no_phases) -> Arrival:
        """Send those weights on their way that are not there yet, into what another model left.

        Raises:
            StoreError: The file cannot be read.
        """
        gpu = retained.backend.gpu
        with contextlib.ExitStack() as undo:
            undo.callback(gpu.close)
            gpu.make_current()
            source = source_of(reader)
            undo.callback(source.close)
            placement = WholeFile(reader.header.loaded())
            changed = retained.changed_groups(placement.header)
            options = spread(options_for(source), retained.bytes_of(changed))
            plan = plan_load(source, placement, options, groups=changed)
            with phases("gpu-memory"):
                arrival = cls(gpu, source, placement, plan, retained=retained, options=options)
            undo.pop_all()
        return arrival

    @classmethod
    def begin(
        cls,
        device: str,
        reader: ModelFile,
        *,
        share: Placement | None = None,
        allowed_bytes: int = 0,
        streaming: StreamOptions | None = None,
        peers: PeerMemory | None = None,
        phases: Phases = no_phases,
    ) -> Arrival | StreamedArrival:
        """Open a GPU (``cuda:1``) and send a file's weights on their way; return while they move.

        With a ``share`` they are those of a rank. It reads through the page cache, where the other
        ranks find what is on the same pages. A model that is larger than the memory streams
        through it, where ``streaming`` allows that. What ``peers`` on this host have in a GPU's
        memory is copied from there, and nothing is read before that is known.

        Raises:
            DeviceError: The GPU is absent, busy or too small.
            StoreError: The file cannot be read.
        """
        with contextlib.ExitStack() as undo:
            plain = source_of(reader, direct="auto" if share is None else "never")
            undo.callback(plain.close)
            header = reader.header.loaded()
            placement = share or WholeFile(header)
            length = placement.length_bytes
            is_larger = 0 < allowed_bytes < length
            is_lent = peers is not None and not is_larger and peers.look(placement)
            if peers is not None:
                undo.callback(peers.close)
            is_read = not (is_larger or is_lent)
            source: ByteSource = AheadSource(plain, placement) if is_read else plain
            undo.callback(source.close)
            plan = plan_load(source, placement)
            areas = None if is_lent else begin_areas(source, plan)
            if areas is not None:
                undo.callback(areas.close)
            with phases("context"):
                gpu = open_gpu(device)
            undo.callback(gpu.close)
            _limit_stack(gpu)
            streaming = None if share is not None else streaming  # a share has no layers of its own
            if streaming is not None and may_stream(gpu, plain, length, allowed_bytes, streaming):
                from zse.backends.gpu.streamed_arrival import StreamedArrival

                streamed = StreamedArrival(
                    gpu, plain, header, streaming, allowed_bytes=allowed_bytes
                )
                if isinstance(source, AheadSource):
                    source.detach()  # what stays is not known yet
                if areas is not None:
                    areas.close()
                if peers is not None:
                    peers.close()
                undo.pop_all()
                return streamed
            with phases("gpu-memory"):
                arrival = cls(
                    gpu,
                    source,
                    placement,
                    plan,
                    allowed_bytes=allowed_bytes,
                    areas=areas,
                    peers=peers,
                )
            undo.pop_all()
        return arrival

    def _begin(
        self, plan: ReadPlan, options: LoaderOptions | None = None, areas: Areas | None = None
    ) -> Load:
        return begin_load(self.gpu, self.source, plan, self.block.address, options, areas=areas)

    def _copied(self, peers: PeerMemory | None) -> Load | None:
        """Begin to copy from a replica on this host, and to read what it has not got behind that.

        None where no replica lends anything.
        """

        def begin_rest(names: Sequence[str]) -> Load:
            return self._begin(plan_load(self.source, self.placement, groups=names))

        if peers is None:
            return None
        return peers.begin_load(self.gpu, self._plan, self.block.address, begin_rest)

    def place(self, load: ModelLoad, options: LoadOptions, layout: KVLayout) -> None:
        """Do nothing: where everything lies was known when it was sent on its way."""

    def passes(self, spec: ModelSpec, _stream: Stream, weights: DeviceWeights) -> Passes:
        """Return how passes go through the layers: what of them can, while weights arrive.

        Ranks wait for each other in their kernels, so that all begin when all is there; what is
        made of weights before the first pass needs them, too; and whole texts are no prompts.
        """
        is_whole = isinstance(self.placement, WholeFile) and not weights.has_narrow_vectors
        if not is_whole or spec.is_encoder:
            return WholePasses()
        return ArrivingPasses(self, self._plan, spec)

    def arrives_again(self, passes: Passes) -> bool:
        """Have the passes of the model that left wait for these weights; whether they can."""
        if not isinstance(passes, ArrivingPasses):
            return False
        passes.begin_again(self, self._plan)
        return True

    def set_aside(self, length_bytes: int) -> None:
        """Leave memory to what will be loaded beside the model.

        Raises:
            DeviceError: The weights do not fit beside it.
        """
        allowed = self.budget.allowed and max(1, self.budget.allowed - length_bytes)
        self.budget = replace(self.budget, free=self.budget.free - length_bytes, allowed=allowed)
        self.budget.check()

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of weights that have arrived, and all of them."""
        return self._loading.num_bytes()

    @property
    def has_arrived(self) -> bool:
        """Whether all of the weights have."""
        arrived, wanted = self.num_bytes()
        return arrived == wanted

    def wait_for_group(self, group: int) -> None:
        """Wait until a group of what is read is in the block; raises as ``wait`` does."""
        self._loading.wait_for_group(group)

    def wait(self) -> LoadReport:
        """Wait until every weight is in the block; several threads may.

        Raises:
            StoreError: The file changed or failed on its way.
            DeviceError: The GPU failed.
        """
        with self._waiting:
            if self._report is None:
                self._report = self._loading.wait()
                self.source.close()
            return self._report

    def stop(self) -> None:
        """Stop what is still on its way; who waits for it gets ``LoadCancelledError``."""
        if self._report is None:
            self._loading.cancel()
            with contextlib.suppress(ZSEError):
                self.wait()
            self.source.close()

    def abandon(self) -> None:
        """Stop, and give everything back, the GPU too; twice does nothing.

        An error is on its way when this is called: what else fails now is not told.
        """
        self.stop()
        with contextlib.suppress(DeviceError):
            self.gpu.close()


def _limit_stack(gpu: Gpu) -> None:
    try:
        gpu.limit_stack(STACK_BYTES)
    except DeviceError as error:  # memory is all that is at stake
        _LOG.warning("GPU threads keep their usual stack: %s", error)


def may_stream(
    gpu: Gpu, source: ByteSource, weights_bytes: int, allowed_bytes: int, options: StreamOptions
) -> bool:
    """Whether a model streams through a GPU's memory: it has to, or is told to, and can."""
    free, _ = gpu.memory()
    budget = MemoryBudget(free=free, allowed=allowed_bytes, weights=weights_bytes)
    if options.stream == "off" or (options.stream == "auto" and budget.holds_weights):
        return False
    if source.kind == "http":
        if options.stream == "on":
            raise UsageError(
                f"{source.name} cannot stream through a GPU's memory: every step would read it",
                hint="Fetch it first: zse pull URL.",
            )
        return False
    return True
