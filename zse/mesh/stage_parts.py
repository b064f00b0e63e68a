"""What one process computes of a stage: all of its layers, or one rank's share of each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from zse.backends import ModelLoad, begin_arrival, create_backend
from zse.backends.cpu.stage import CPUStage
from zse.backends.ranks import HostEdges, RankPart
from zse.device.open import runs_on_gpu
from zse.errors import DeviceError
from zse.kernels.native.library import load as load_library
from zse.models.decoder import forward_of
from zse.models.runner import spec_of
from zse.models.share import share_of
from zse.models.stage import stage_of
from zse.models.stage_share import stage_share, whole_share
from zse.option import with_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.stage import GPUStage
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.backends.ranks import RankLink
    from zse.format.reader import ZSEReader
    from zse.models.share import ModelShare
    from zse.models.spec import ModelSpec
    from zse.models.stage import StageSpec
    from zse.options import LoadOptions

StagePart: TypeAlias = "CPUStage | GPUStage"


def open_part(
    reader: ZSEReader,
    layers: tuple[int, int],
    options: LoadOptions,
    *,
    cache_dir: Path | None,
    link: RankLink | None = None,
    devices: Sequence[str] = (),
) -> StagePart:
    """Return some layers of a model on a device; the file is closed with it.

    Args:
        reader: The file; where nothing can be opened it stays the caller's.
        layers: The first one, and the one behind the last.
        options: Where and how; its device is this process's.
        cache_dir: Of this machine's kernel packs and tables.
        link: To the other ranks, which have the rest of each layer; None: there are none.
        devices: Of all ranks.

    Raises:
        UsageError: A size of the model cannot be divided among so many ranks.
        UnsupportedModelError: The device does not compute the model.
        DeviceError: The device is absent or too small, or does not reach another one's memory, or
            another rank is lost.
    """
    spec = spec_of(reader)
    spec = spec.within(options.batch.max_context or spec.max_position)
    stage = stage_of(spec, *layers)
    if not runs_on_gpu(options.device.name):
        if link is None:
            return _OnCPU(reader, stage, options)
        share = _share(reader, spec, stage, link)
        part = RankPart(link=link, spec=share.spec, cuts=share.cuts, edges=HostEdges())
        return _OnCPU(reader, replace(stage, model=share.spec), options, part)
    from zse.backends.gpu.stage import AloneLink

    share = _share(reader, spec, stage, link)
    load = ModelLoad(
        reader=reader,
        spec=share.spec,
        part=RankPart(
            link=link or AloneLink(), spec=share.spec, cuts=share.cuts, edges=HostEdges()
        ),
        options=with_values(options, {"stream": "off"}),
        forward=forward_of(share.spec),
        cache_dir=cache_dir,
    )
    return _on_gpu(load, replace(stage, model=share.spec), reader, devices)


def _on_gpu(
    load: ModelLoad, stage: StageSpec, reader: ZSEReader, devices: Sequence[str]
) -> GPUStage:
    from zse.backends.gpu.backend import GPUBackend
    from zse.backends.gpu.stage import GPUStage

    arrival = _begun_beside(load, reader, devices) if devices else None
    backend = create_backend(load, arrival)
    assert isinstance(backend, GPUBackend)
    return GPUStage(stage, backend, load_library(), reader.close)


def _begun_beside(
    load: ModelLoad, reader: ZSEReader, devices: Sequence[str]
) -> Arrival | StreamedArrival:
    """Send a share of the weights on its way to a GPU that reaches the others."""
    from zse.engine.ranks.opening import check_links

    assert load.part is not None
    arrival = begin_arrival(load.options, reader, cuts=load.part.cuts)
    assert arrival is not None
    try:
        check_links(arrival.gpu, devices)
    except DeviceError:
        arrival.abandon()
        raise
    return arrival


def _share(
    reader: ZSEReader, spec: ModelSpec, stage: StageSpec, link: RankLink | None
) -> ModelShare:
    whole = whole_share(spec)
    if link is not None:
        whole = share_of(spec, reader.header.loaded().tensors, link.share)
    return stage_share(whole, stage.first_layer, stage.end_layer)


class _OnCPU(CPUStage):
    """A part whose file is closed with it."""

    def __init__(
        self,
        reader: ZSEReader,
        stage: StageSpec,
        options: LoadOptions,
        part: RankPart | None = None,
    ) -> None:
        self._reader = reader
        super().__init__(reader, stage, options, part)

    def close(self) -> None:
        super().close()
        self._reader.close()
