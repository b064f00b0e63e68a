"""From an open file to ranks that load their shares of it: rank 0 here, the others beside it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends import begin_arrival
from zse.backends.ranks import Share
from zse.device.open import check_device
from zse.device.phases import no_phases
from zse.engine.ranks.devices import devices_of, options_of, warn_of_sharing
from zse.engine.ranks.group import RankGroup
from zse.engine.ranks.stage_memory import stage_bytes
from zse.engine.ranks.stages import Places, place_part
from zse.environment import one_gpu
from zse.errors import DeviceError, UsageError
from zse.format.reader import ZSEReader
from zse.models.cuts import cut_layers
from zse.models.runner import load_runner, spec_of
from zse.models.share import share_of
from zse.models.work import work_of
from zse.option import with_values
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.backends.ranks import RankPart
    from zse.backends.types import DeviceUsed
    from zse.device.gpu import Gpu
    from zse.device.phases import Phases
    from zse.engine.ranks.processes import RankProcesses
    from zse.format.model_file import ModelFile
    from zse.format.spec import ZSEHeader
    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions


_LOG = logging.getLogger("zse.engine")


@record
class OpenedRanks:
    """Ranks whose weights are on their way."""

    group: RankGroup
    part: RankPart
    """Of rank 0."""
    options: LoadOptions
    """With rank 0's device."""
    arrival: Arrival | StreamedArrival | None
    """Rank 0's weights on their way to a GPU; None on a CPU."""

    def options_for(self, num_adapters: int) -> LoadOptions:
        """Return the options of rank 0.

        Raises:
            UsageError: There are to be adapters.
        """
        if num_adapters:
            raise _unsupported("adapters", "Merge them when the model is converted.")
        return self.options

    def wait_until_ready(self, runner: ModelRunner) -> None:
        """Wait until every rank has its share; from now on the runner closes them.

        Raises:
            DeviceError: A rank failed, or devices that share layers are of different kinds.
        """
        runner.owns(self.group.close)
        gifts = self.group.link.exchange(kind_of(runner.device))
        ranks = self.options.ranks.tensor_parallel
        check_alike([gift.payload for gift in gifts], ranks)


def open_ranks(
    reader: ModelFile,
    options: LoadOptions,
    phases: Phases,
    *,
    cache_dir: Path | None,
    processes: RankProcesses | None = None,
) -> OpenedRanks:
    """Start the other ranks and send rank 0's weights on their way; a failure closes the reader.

    Args:
        processes: Of the other ranks, where ``begin_processes`` was called; a failure closes them.

    Raises:
        UsageError: The model cannot be divided so, or is asked for what ranks do not do.
        DeviceError: A device is absent or too small.
    """
    group = arrival = None
    try:
        check_options(options)
        devices = devices_of(options)
        warn_of_sharing(devices)
        if not isinstance(reader, ZSEReader):
            raise UsageError(
                f"several ranks read a file of this machine, not {reader.path}",
                hint="Fetch it first: zse pull URL.",
            )
        header, spec = reader.header.loaded(), spec_of(reader)
        ranks = options.ranks.tensor_parallel
        for rank in range(ranks):  # told here, in one sentence, before anything is started
            if ranks > 1:
                share_of(spec, header.tensors, Share(rank=rank, ranks=ranks))
        places = Places(num_ranks=ranks, ends=stage_ends(spec, header, options, devices))
        options = with_values(options, {"stream": "off"})
        with phases("ranks"):
            group = RankGroup(
                reader, options, devices, places.ends, cache_dir=cache_dir, processes=processes
            )
        part = replace(place_part(spec, header, group.link, places), crew=group)
        options = options_of(options, devices, 0)
        arrival = begin_arrival(options, reader, cuts=part.cuts, phases=phases)
        if arrival is not None:
            check_links(arrival.gpu, devices)
    except BaseException:
        if group is not None:
            group.close()
        elif processes is not None:
            processes.close()
        if arrival is not None:
            arrival.abandon()
        reader.close()
        raise
    return OpenedRanks(group=group, part=part, options=options, arrival=arrival)


def load_ranked_runner(
    path: str | Path, options: LoadOptions, *, cache_dir: Path | None
) -> ModelRunner:
    """Load a file of this machine onto several devices, without an engine over it.

    Raises:
        As ``open_ranks`` and ``load_runner``.
    """
    reader = ZSEReader(path)
    opened = open_ranks(reader, options, no_phases, cache_dir=cache_dir)
    try:
        runner = load_runner(
            reader,
            opened.options,
            cache_dir=cache_dir,
            arrival=opened.arrival,
            part=opened.part,
        )
    except BaseException:
        opened.group.close()
        if opened.arrival is not None:
            opened.arrival.abandon()
        reader.close()
        raise
    runner.owns_file(reader)
    try:
        opened.wait_until_ready(runner)
    except BaseException:
        runner.close()
        raise
    return runner


def stage_ends(
    spec: ModelSpec, header: ZSEHeader, options: LoadOptions, devices: Sequence[str]
) -> tuple[int, ...]:
    """Return the layer behind each stage: of one, all of them.

    Stages have room for all sequences at once where GPUs have that, else for one of them.

    Raises:
        UnsupportedModelError: The model is no stack of layers that hand on nothing but a stream.
        UsageError: It has too few layers for so many stages, or the GPUs do not hold them.
        DeviceError: A GPU cannot be looked at.
    """
    stages = options.ranks.pipeline_parallel
    if stages == 1:
        return (len(spec.layers),)
    context = options.batch.max_context or spec.max_position
    works = [
        work_of(spec, header.tensors, streams=streams, context_tokens=context)
        for streams in (options.batch.max_sequences, 1)
    ]
    held = sum(layer.weight_bytes + layer.kv_bytes for layer in works[1].layers)
    memory = stage_bytes(devices, stages, held, options.device.vram_bytes)
    try:
        cuts = cut_layers(spec, works[0], stages, context_tokens=context, memory_bytes=memory)
    except UsageError:
        if not memory:
            raise
        cuts = cut_layers(spec, works[1], stages, context_tokens=context, memory_bytes=memory)
    return tuple(one.end for one in cuts)


def check_links(gpu: Gpu, devices: Sequence[str]) -> None:
    """Refuse GPUs whose memory this one does not reach.

    A process that is shown one GPU alone is told so when it maps the memory of another.

    Raises:
        DeviceError: It does not reach one; the message names both.
    """
    if one_gpu.ordinal is not None:
        return
    for ordinal in map(check_device, devices):
        if ordinal != gpu.info.ordinal:
            gpu.link_to(ordinal)


def kind_of(device: DeviceUsed) -> bytes:
    """Return what a rank that is ready says of its device."""
    return f"{device.hardware}\n{device.instructions}".encode()


def check_alike(kinds: Sequence[bytes], ranks: int) -> None:
    """Refuse devices that would share layers and round in different ways; name unequal ones.

    Every rank computes for itself what is not divided (norms, routers, the choice of a token), and
    what one has in other bits than the next ends in two different tokens.

    Args:
        kinds: Of all devices, in the order of ranks; see ``kind_of``.
        ranks: That share the layers of a stage.

    Raises:
        DeviceError: Devices of one stage have different instructions.
    """
    said = [kind.decode().partition("\n")[::2] for kind in kinds]
    told = ", ".join(f"rank {n}: {name} ({code})" for n, (name, code) in enumerate(said))
    for first in range(0, len(said), ranks):
        if len({code for _, code in said[first : first + ranks]}) > 1:
            raise DeviceError(
                f"devices that round in different ways cannot share layers: {told}",
                hint="Give each layers of its own: --pipeline-parallel instead of "
                "--tensor-parallel; or name devices of one kind with --gpus.",
            )
    if len(set(said)) > 1:
        _LOG.warning(
            "devices of different kinds compute one model, at the slowest's pace: %s", told
        )


def check_options(options: LoadOptions) -> None:
    """Refuse what several ranks do not do.

    Raises:
        UsageError: The options ask for it.
    """
    if options.speculation.speculate == "model" or options.speculation.draft_model:
        raise _unsupported("a draft model", "Leave --draft-model out; texts are guessed from.")
    if options.speculation.speculate in ("mtp", "early-exit"):
        asked = f"--speculate {options.speculation.speculate}"
        raise _unsupported(asked, "Choose --speculate suffix; texts are guessed from.")
    streaming = {
        "--stream": options.stream.stream == "on",
        "--resident-layers": bool(options.stream.resident_layers),
        "--ram-gib": bool(options.stream.ram_gib),
    }
    if flag := next((name for name, is_given in streaming.items() if is_given), ""):
        raise _unsupported("layers that stream", f"Leave {flag} out.")
    if options.cache.prefix_store:
        raise _unsupported("prefixes that are kept in files", "Leave --prefix-store out.")
    if options.cache.prefix_host_gib:
        raise _unsupported("prefixes in host memory", "Leave --prefix-host-gib out.")
    if options.lora.gpu_gib:
        raise _unsupported("adapters", "Merge them when the model is converted.")
    if options.device.name == "torch":
        raise _unsupported("the torch backend", "Use --device cpu or cuda.")


def _unsupported(what: str, hint: str) -> UsageError:
    return UsageError(f"several ranks do not compute with {what}", hint=hint)
