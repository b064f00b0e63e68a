"""Backends: the dozen operations, executed on one kind of device.

``create_backend`` picks one; its module, and what that stands on, is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.open import check_device, runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.errors import DeviceError, needing
from zse.format import ZSEReader
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.retained import Retained
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.backends.operations import Backend, Forward
    from zse.backends.ranks import RankPart
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec
    from zse.options import DeviceOptions, LoadOptions
    from zse.stream.peers.beside import PeerMemory
    from zse.stream.shards import Cut


def preload(device: DeviceOptions, spec: ModelSpec | None = None) -> None:
    """Import a GPU's backend ahead of ``create_backend``, while the GPU is being opened.

    With a ``spec`` also what only some models have, and the pack of kernels is read.
    """
    if runs_on_gpu(device.name):
        from zse.backends.gpu.open import import_kinds
        from zse.kernels.find import read_ahead

        if spec is not None:
            import_kinds(spec)
            read_ahead(device.kernels)


def begin_arrival(
    options: LoadOptions,
    reader: ModelFile,
    *,
    cuts: Mapping[str, Cut] | None = None,
    phases: Phases = no_phases,
    retained: Retained | None = None,
    peers: PeerMemory | None = None,
) -> Arrival | StreamedArrival | None:
    """Send a file's weights on their way to a GPU; ``create_backend`` takes them over.

    They go into what is retained for them, where that is still there. With ``cuts`` they are the
    share of a rank. ``peers`` are replicas on this host, which have them in GPU memory perhaps.

    Returns:
        None where the device is no GPU.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        StoreError: The file cannot be read.
    """
    device = options.device
    check_device(device.name)
    if not runs_on_gpu(device.name):
        return None
    from zse.backends.gpu.arrival import Arrival

    if retained is not None and (claimed := retained.claim(reader, phases=phases)) is not None:
        return claimed
    share = None
    if cuts is not None:
        from zse.stream.shards import Sharded

        share = Sharded(reader.header.loaded(), cuts)
    return Arrival.begin(
        device.name,
        reader,
        share=share,
        allowed_bytes=device.vram_bytes,
        streaming=options.stream,
        peers=peers,
        phases=phases,
    )


def begin_to_map(reader: ModelFile) -> None:
    """Begin to make a file's pages present where a CPU reads them; no one has to wait for it."""
    if isinstance(reader, ZSEReader):
        from zse.backends.cpu import page_mapping

        page_mapping.begin_to_map(reader)


@record
class ModelLoad:
    """A model that is to be loaded onto a device."""

    reader: ModelFile
    """The open file; it must stay open while the backend lives."""
    spec: ModelSpec
    options: LoadOptions
    """Where and how; the context is no longer than the model's."""
    forward: Forward
    """The pass that steps will make; a GPU prepares it while the weights arrive."""
    part: RankPart | None = None
    """Set where several ranks compute the model: this one's part, which ``spec`` is of."""
    cache_dir: Path | None = None
    """Where kernel packs and tables of this machine lie; None looks nowhere."""
    phases: Phases = no_phases
    """Told what takes the time."""


def create_backend(load: ModelLoad, arrival: Arrival | StreamedArrival | None = None) -> Backend:
    """Load a file's weights onto a device, or take over those on their way, and make its KV pool.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        UnsupportedModelError: The device does not compute the model, or not as it is asked to.
        MissingDependencyError: The backend stands on a package that is not installed.
    """
    reader = load.reader
    if load.options.device.deterministic:
        from zse.backends.single import check_deterministic

        check_deterministic(load.spec, load.options)
    cuts = None if load.part is None else load.part.cuts
    arrival = arrival or begin_arrival(load.options, reader, cuts=cuts, phases=load.phases)
    if arrival is not None:
        from zse.backends.gpu.open import open_gpu_backend

        return open_gpu_backend(arrival, load)
    if not isinstance(reader, ZSEReader):
        raise DeviceError(
            f"a CPU reads its weights from a file of this machine, not from {reader.path}",
            hint="Fetch it first: zse pull URL.",
        )
    if load.options.device.name == "torch":
        if load.part is not None:
            raise DeviceError(
                "the torch backend computes no part of a model",
                hint="Use --device cpu or cuda, or leave --tensor-parallel out.",
            )
        with needing("convert", "the torch backend"):
            from zse.backends.torch import TorchBackend
        return TorchBackend(reader, load.spec, load.options)
    from zse.backends.cpu.backend import CPUBackend

    return CPUBackend(reader, load.spec, load.options, load.part)
