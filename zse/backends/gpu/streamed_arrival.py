"""A model on its way to a GPU that does not hold it: what stays is loaded, the rest streams.

What stays depends on what a backend needs besides, so nothing is read before that is known. The
interface is that of ``zse.backends.gpu.arrival.Arrival``.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.budget import MemoryBudget
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.row_maxima import room_for
from zse.backends.gpu.streamed import StreamedPasses
from zse.backends.states import states_on_gpu
from zse.device.probe import probe
from zse.errors import DeviceError, ZSEError
from zse.format.schemes import Scheme, kernel_format
from zse.kernels.linear.weight import LinearWeight
from zse.stream.fit import LAYER_PREFIX, plan_streaming, plan_window
from zse.stream.link import measure_link
from zse.stream.loader import begin_load, plan_load
from zse.stream.weights import StreamedWeights
from zse.units import memory_text

if TYPE_CHECKING:
    from zse.backends import ModelLoad
    from zse.backends.gpu.kv_pool import KVLayout
    from zse.backends.gpu.weights import DeviceWeights
    from zse.device.gpu import Block, Gpu, Stream
    from zse.format.spec import ZSEHeader
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions, StreamOptions
    from zse.stream.loader import RegionLoad
    from zse.stream.native import NativeLoad
    from zse.stream.options import LoadReport
    from zse.stream.source import ByteSource
    from zse.stream.window import WindowPlacement

_LOG = logging.getLogger("zse.backends.gpu")
USUAL_CONTEXT = 4096
"""Tokens of one sequence that the KV cache holds at least, unless it is told otherwise."""
_KV_SHARE = 8
"""The KV cache takes one such part of the memory, where no one says how much."""
_PINNED_SHARE = 0.6
"""Of the memory that the host has left may hold pinned copies."""


class StreamedArrival:
    """A model of which as much stays as fits.

    Raises:
        DeviceError: Not even two layers fit.
    """

    def __init__(
        self,
        gpu: Gpu,
        source: ByteSource,
        header: ZSEHeader,
        options: StreamOptions,
        *,
        allowed_bytes: int = 0,
    ) -> None:
        self.gpu = gpu
        self.source = source
        self.retained = None
        self._header = header
        self._options = options
        self._weights: StreamedWeights | None = None
        self._loading: RegionLoad | NativeLoad | None = None
        self._is_over = False
        free, _ = gpu.memory()
        self.budget = MemoryBudget(free=free, allowed=allowed_bytes, weights=0)
        smallest = plan_window(
            header, max(self.budget.for_cache, 0), slots=options.slots, most_resident=0
        )
        smallest_bytes = smallest.ends_bytes + smallest.slots * smallest.slot_bytes
        self.budget = replace(self.budget, weights=smallest_bytes)

    def set_aside(self, length_bytes: int) -> None:
        """Leave memory to what will be loaded beside the model."""
        allowed = self.budget.allowed and max(1, self.budget.allowed - length_bytes)
        self.budget = replace(self.budget, free=self.budget.free - length_bytes, allowed=allowed)
        self.budget.check()

    def place(self, load: ModelLoad, options: LoadOptions, layout: KVLayout) -> None:
        """Choose what stays, and send it on its way.

        Raises:
            DeviceError: Not even two layers fit beside what else is needed.
        """
        budget = replace(self.budget, weights=0)
        beside = _bytes_beside(self.gpu, self._header, load.spec, options, layout)
        beside += _cache_bytes(load.spec, options, layout, budget.for_cache)
        wanted = self._options
        plan = plan_streaming(
            self._header,
            budget.for_cache - beside,
            slots=wanted.slots,
            most_resident=wanted.resident_layers,
        )
        self._weights = StreamedWeights(
            self.gpu, self.source, self._header, plan, pinned_bytes=_pinned_bytes(wanted)
        )
        self.budget = replace(self.budget, weights=plan.total_bytes)
        reads = plan_load(self.source, self.placement)
        self._loading = begin_load(self.gpu, self.source, reads, self.placement.origin_bytes)

    @property
    def weights(self) -> StreamedWeights:
        assert self._weights is not None, "place comes first"
        return self._weights

    @property
    def placement(self) -> WindowPlacement:
        return self.weights.placement

    @property
    def block(self) -> Block:
        """All memory of weights; its address is the lowest."""
        return self.weights.blocks

    def passes(
        self, spec: ModelSpec, stream: Stream, _weights: DeviceWeights | None = None
    ) -> StreamedPasses:
        """Return how passes go through the layers."""
        weights = self.weights
        weights.use_stream(stream)
        names = {f"{LAYER_PREFIX}{layer.index}": layer.index for layer in spec.layers}
        return StreamedPasses(weights, names)

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of what stays that have arrived, and all of them."""
        return (0, 1) if self._loading is None else self._loading.num_bytes()

    @property
    def has_arrived(self) -> bool:
        arrived, wanted = self.num_bytes()
        return arrived == wanted

    def wait(self) -> LoadReport:
        """Wait until what stays is there; then say what streams, and how fast it can be."""
        assert self._loading is not None
        report = self._loading.wait()
        self._is_over = True
        self.weights.link_bytes_per_second = measure_link(self.gpu, self.weights.blocks.slots[0])
        self._say(self.weights.link_bytes_per_second)
        return report

    def abandon(self) -> None:
        """Stop, and give everything back, the GPU too; twice does nothing."""
        if not self._is_over:
            self._is_over = True
            if self._loading is not None:
                self._loading.cancel()
                with contextlib.suppress(ZSEError):
                    self._loading.wait()
        with contextlib.suppress(ZSEError):
            if self._weights is None:
                self.source.close()
            else:
                self._weights.close()
        with contextlib.suppress(DeviceError):
            self.gpu.close()

    def _say(self, link_bytes_per_second: float) -> None:
        plan = self.weights.plan
        _LOG.info(
            "%d of %d layers stay on the GPU (%s with all that is no layer), %d stream through %d "
            "slots: %.2f GB for each step; the link moves %.1f GB/s, so at most %.2f steps a "
            "second, whatever shares a step. Answers that run together and --speculate share it.",
            len(plan.resident),
            plan.num_layers,
            memory_text(plan.resident_bytes + plan.ends_bytes),
            len(plan.streamed),
            plan.slots,
            plan.streamed_bytes / 1e9,
            link_bytes_per_second / 1e9,
            plan.steps_per_second(link_bytes_per_second),
            extra={
                "resident_layers": len(plan.resident),
                "streamed_layers": len(plan.streamed),
                "streamed_gigabytes": round(plan.streamed_bytes / 1e9, 3),
                "link_gigabytes_per_second": round(link_bytes_per_second / 1e9, 2),
                "most_steps_per_second": round(plan.steps_per_second(link_bytes_per_second), 3),
            },
        )


def _bytes_beside(
    gpu: Gpu, header: ZSEHeader, spec: ModelSpec, options: LoadOptions, layout: KVLayout
) -> int:
    """Return what a backend holds besides weights and KV cache."""
    plans = StepPlans(spec, shapes_of(header), gpu.info, options)
    tables = plans.rotary_bytes + plans.counters_bytes + plans.row_numbers_bytes
    return (
        plans.largest_scratch_bytes()
        + tables
        + sum(layout.block_bytes())
        + room_for(plans.kept_matrices)
        + states_on_gpu(spec, options).length_bytes
        + options.lora.gpu_bytes
    )


def _cache_bytes(spec: ModelSpec, options: LoadOptions, layout: KVLayout, limit_bytes: int) -> int:
    """Return what is kept for the KV cache before layers are: what is asked for, or a part."""
    blocks, groups, cache = layout.block_bytes(), layout.groups, options.cache
    if spec.is_encoder:
        return groups.length_bytes(1, blocks)
    if cache.num_blocks:
        return groups.length_bytes(cache.num_blocks, blocks)
    if cache.kv_bytes:
        return cache.kv_bytes
    context = options.batch.max_context or spec.max_position
    one = groups.length_bytes(-(-min(context, USUAL_CONTEXT) // BLOCK_SIZE), blocks)
    per_sequence = -(-context // BLOCK_SIZE)
    useful = groups.length_bytes(per_sequence * options.batch.max_sequences, blocks)
    return min(useful, max(one, limit_bytes // _KV_SHARE))


def shapes_of(header: ZSEHeader) -> dict[str, LinearWeight]:
    """Return the matrices of a file by name, without addresses."""
    found = {}
    for entry in header.tensors:
        if len(entry.shape) == 2 and entry.scheme is not Scheme.FP32:
            scheme, group_size = kernel_format(entry.scheme, entry.group_size)
            rows, columns = entry.shape
            found[entry.name] = LinearWeight(
                scheme=scheme, rows=rows, columns=columns, group_size=group_size, weights=0
            )
    return found


def _pinned_bytes(options: StreamOptions) -> int:
    if options.ram_bytes:
        return options.ram_bytes
    return int(probe().available_memory_bytes * _PINNED_SHARE)
