"""From weights on their way to a GPU backend: kernels, KV pool, tables, the first graph."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zse.backends.gpu.arriving import RestOfStart
from zse.backends.gpu.backend import GPUBackend
from zse.backends.gpu.key_factors import DeviceFactors, read_key_factors
from zse.backends.gpu.kinds import collectives_of, flow_of, import_kinds, state_pool_of
from zse.backends.gpu.kv_pool import BLOCK_SIZE, KVLayout, KVPool, layout_for
from zse.backends.gpu.launcher import PackLauncher
from zse.backends.gpu.memory import (
    SCRATCH_RANGE_BYTES,
    DeviceMemory,
    SequenceMemory,
    choose_num_blocks,
    kept_limit_bytes,
    limited,
    with_agreement,
    with_long_steps,
)
from zse.backends.gpu.model import DeviceModel
from zse.backends.gpu.supported import check_supported
from zse.backends.gpu.weights import DeviceWeights
from zse.backends.kv_dtypes import is_narrow
from zse.backends.kv_groups import groups_of, whole_groups
from zse.backends.ranks import HostEdges, agreed
from zse.backends.states import states_on_gpu, with_states_that_fit
from zse.errors import DeviceError
from zse.kernels.find import find_pack
from zse.kernels.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.backends import ModelLoad
    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.budget import MemoryBudget
    from zse.backends.gpu.retained import Retained
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.backends.ranks import RankPart
    from zse.device.gpu import Stream
    from zse.kernels.launcher import Launcher
    from zse.options import LoadOptions
    from zse.stream.options import LoadReport

__all__ = ["build_backend", "import_kinds", "open_gpu_backend"]

_LOG = logging.getLogger("zse.backends.gpu")
PROMPT_ROWS = (32, 64, 128, 16, 512)
"""Tokens of prompts whose kernels are loaded while the weights are on their way: each has some of
its own, and the first are the likeliest."""
KV_DTYPES = {"auto": "bf16", "bf16": "bf16", "int8": "int8", "int4": "int4"}


def open_gpu_backend(arrival: Arrival | StreamedArrival, load: ModelLoad) -> GPUBackend:
    """Build a backend around weights that are on their way; an error gives the GPU back.

    Raises:
        DeviceError: The GPU is too small, or an option has no meaning for it.
        KernelPackError: There are no kernels for it.
        StoreError: The file changed or failed on its way.
    """
    try:
        if arrival.retained is not None:
            return fill_again(arrival.retained, arrival, load)
        check_supported(load.spec)
        gpu = arrival.gpu
        gpu.make_current()  # another thread may have opened it
        stream = gpu.create_stream()

        def make_launcher() -> Launcher:
            named = load.options.device.kernels
            pack = find_pack(
                gpu.info,
                explicit=Path(named) if named else None,
                sections=load.reader,
                cache_dir=load.cache_dir,
            )
            return PackLauncher(gpu, pack, stream)

        return build_backend(stream, make_launcher, arrival, load)
    except BaseException:
        arrival.abandon()
        raise


def fill_again(retained: Retained, arrival: Arrival, load: ModelLoad) -> GPUBackend:
    """Return a backend that another model of the same shape has left, for these weights.

    Where its passes wait for what they need themselves, they may still be on their way.
    """
    backend = retained.backend
    if load.spec != backend.spec:
        raise DeviceError(
            "a model is not of the shape of the one whose place it takes",
            hint="Ask for it again.",
        )
    if not backend.awaits(arrival, RestOfStart(iter(()), load.phases, told=_tell_of)):
        with load.phases("weights-to-gpu"):
            _tell_of(arrival.wait())
    backend.begin_again(arrival.placement.header)
    return backend


def build_backend(
    stream: Stream,
    make_launcher: Callable[[], Launcher],
    arrival: Arrival | StreamedArrival,
    load: ModelLoad,
) -> GPUBackend:
    """Make everything else while the weights arrive, then wait for them.

    Where passes wait for what they need themselves, what is left is done by ``GPUBackend.settle``.
    """
    spec, phases = load.spec, load.phases
    options = with_states_that_fit(spec, load.options, arrival.budget.for_cache)
    if load.part is not None:
        options = with_agreement(load.part, spec, options, arrival.gpu.info.total_bytes)
    elif arrival.budget.holds_weights:  # else layers stream, and memory is short
        options = with_long_steps(spec, options, arrival.gpu.info.total_bytes)
    _check_options(options)
    kv_dtype = "bf16" if spec.is_encoder else KV_DTYPES[options.cache.kv_dtype]
    factors = {}
    if is_narrow(kv_dtype):
        cuts = None if load.part is None else load.part.cuts
        factors = read_key_factors(arrival.source, load.reader.header, spec, cuts)
    is_of_mesh = load.part is not None and isinstance(load.part.edges, HostEdges)
    groups = whole_groups(spec) if is_of_mesh else groups_of(spec, options)
    layout = layout_for(spec, kv_dtype, groups, factors)
    arrival.place(load, options, layout)
    weights = DeviceWeights(arrival.gpu, arrival.placement, arrival.block)
    passes = arrival.passes(spec, stream, weights)
    with phases("kernels"):
        launcher = make_launcher()
        collectives = collectives_of(arrival.gpu, stream, load.part, options)
        flow = flow_of(arrival.gpu, stream, load.part, options)
    with phases("kv-cache"):
        tuning = Tuning.load(launcher.device.name, cache_dir=load.cache_dir)
        model = DeviceModel(
            arrival.gpu,
            launcher.device,
            weights,
            spec,
            options,
            tuning,
            DeviceFactors(arrival.gpu, factors),
            passes,
            collectives,
            flow,
        )
        memory = _share_out(arrival, model, layout, options, load.part)
        model.make_tables(launcher, stream)
        memory.sequences.cache.clear_unseen(stream)
    backend = GPUBackend(arrival.gpu, stream, launcher, model, memory)
    preparations = prepare(backend, arrival, load)
    if passes.is_arriving:
        # What a first request needs is prepared when it may come already: it knows best what.
        backend.rest_of_start = RestOfStart(preparations, phases, told=_tell_of)
        return backend
    with phases("warm-up"):
        for _ in preparations:
            pass
    with phases("weights-to-gpu"):
        _tell_of(arrival.wait())
    weights.widen_vectors(stream)
    passes.start()
    return backend


def _tell_of(report: LoadReport) -> None:
    figures = {
        "gigabytes": round(report.num_bytes / 1e9, 3),
        "gigabytes_per_second": round(report.gigabytes_per_second, 2),
        "source": report.source,
        "milliseconds": round(1000 * report.seconds, 1),
        "milliseconds_of_a_thread": {
            phase: round(1000 * seconds, 1) for phase, seconds in report.phase_seconds.items()
        },
    }
    _LOG.info("weights are on the GPU", extra=figures)


def prepare(
    backend: GPUBackend, arrival: Arrival | StreamedArrival, load: ModelLoad
) -> Iterator[None]:
    """Prepare what a first request needs while weights are on their way, in the order of need.

    First comes what its prompt goes through. The step that is captured for the tokens behind it has
    time while weights are awaited; else it is captured behind the first of them. Then kernels of
    prompts are loaded until the weights have arrived. Each next item is a little of it.
    """
    is_text = not load.spec.is_encoder
    most = load.options.batch.max_batch_tokens
    if is_text and not backend.begins_with_capture:
        if most >= PROMPT_ROWS[0]:
            yield from backend.prepare_prompt(load.forward, PROMPT_ROWS[0])
        is_text = not arrival.has_arrived
    if is_text:
        backend.warm(load.forward)
        yield
    for rows in PROMPT_ROWS:
        if arrival.has_arrived:
            return
        if rows <= most:
            yield from backend.prepare_prompt(load.forward, rows)


def _share_out(
    arrival: Arrival | StreamedArrival,
    model: DeviceModel,
    layout: KVLayout,
    options: LoadOptions,
    part: RankPart | None = None,
) -> DeviceMemory:
    """Take what a backend holds besides its weights; the KV pool gets what is left.

    Ranks have as many blocks as the one that has the least memory left: a step names the same
    blocks on all.
    """
    states = states_on_gpu(model.spec, options)
    exchanges = [one for one in (model.collectives, model.flow) if one is not None]
    shared_bytes = sum(one.length_bytes for one in exchanges)
    budget = replace(
        arrival.budget,
        scratch=model.plans.largest_scratch_bytes() + shared_bytes,
        states=states.length_bytes,
        adapters=0 if model.adapters is None else model.adapters.length_bytes,
    )
    if model.passes.looks_ahead:  # else memory is short
        kept = _keep_turned(model, budget, layout, options)
        scratch = model.plans.largest_scratch_bytes() + shared_bytes
        budget = replace(budget, kept=kept, scratch=scratch)
    layout = limited(layout, budget, options)
    num_blocks = choose_num_blocks(budget, layout, model.spec, options)
    if part is not None:
        num_blocks, groups = agreed(part.link, num_blocks, layout.groups)
        layout = replace(layout, groups=groups)
    model.hold_turned()
    return DeviceMemory(
        sequences=SequenceMemory(
            cache=KVPool(arrival.gpu, layout, layout.groups.num_blocks(num_blocks)),
            states=state_pool_of(arrival.gpu, states, states.num_slots),
        ),
        scratch=arrival.gpu.create_pool(SCRATCH_RANGE_BYTES),
    )


def _keep_turned(
    model: DeviceModel, budget: MemoryBudget, layout: KVLayout, options: LoadOptions
) -> int:
    """Have weights kept turned for prompts as far as there is memory; return what they take."""
    total_bytes = model.turned_matrices_bytes
    model.keep_turned(kept_limit_bytes(budget, layout, options, total_bytes))
    return model.kept_weights.length_bytes


def _check_options(options: LoadOptions) -> None:
    if options.cache.kv_dtype not in KV_DTYPES:
        raise DeviceError(
            f"a GPU keeps no {options.cache.kv_dtype} KV cache",
            hint=f"Choose one of {', '.join(KV_DTYPES)}.",
        )
    if options.cache.block_size != BLOCK_SIZE:
        raise DeviceError(
            f"KV blocks of {options.cache.block_size} tokens were asked for; on a GPU they have "
            f"{BLOCK_SIZE}",
            hint="Leave the block size out.",
        )
