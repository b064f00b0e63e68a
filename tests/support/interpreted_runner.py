"""A model's runner on the GPU that is made of Triton's interpreter."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import interpreted_gpu
from shared_interpreted_gpu import SharedInterpretedGpu

from zse.backends import ModelLoad
from zse.backends.gpu.arrival import Arrival
from zse.backends.gpu.open import build_backend
from zse.backends.gpu.streamed_arrival import StreamedArrival
from zse.backends.gpu.supported import check_supported
from zse.format import ZSEReader
from zse.models.decoder import forward_of
from zse.models.families import read_header
from zse.models.runner import ModelRunner
from zse.models.share import part_of
from zse.options import load_options
from zse.stream.loader import plan_load
from zse.stream.placement import SomeGroups, WholeFile
from zse.stream.shards import Sharded
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from zse.backends.ranks import RankLink, RankPart
    from zse.kernels.launcher import Launcher
    from zse.models.spec import ModelSpec
    from zse.stream.peers.beside import PeerMemory
    from zse.stream.placement import Placement
    from zse.stream.source import ByteSource


def open_runner(
    path: Path,
    *,
    spec: ModelSpec | None = None,
    link: RankLink | None = None,
    part: RankPart | None = None,
    gpu: interpreted_gpu.InterpretedGpu | None = None,
    launches: Callable[[interpreted_gpu.HostStream], Launcher] | None = None,
    source: ByteSource | None = None,
    peers: PeerMemory | None = None,
    groups: Collection[str] = (),
    **sizes: object,
) -> ModelRunner:
    """Return a runner of a file; ``spec`` stands for what the file's header says.

    With a ``link`` it is one rank of several, with a ``part`` that one of them. ``launches`` makes
    what launches kernels, if not Triton's interpreter; ``source`` is where weights come from, if not
    the file, and ``peers`` are those whose memory they are copied from, or who are lent theirs. Of
    the file's groups only ``groups`` are loaded, if any are named.
    """
    reader = ZSEReader(path)
    options = load_options(
        **{"num_blocks": 8, "max_sequences": 2, "max_batch_tokens": 16, **sizes},
    )
    model = spec = spec or read_header(reader.header.model_config)
    part = part_of(spec, reader.header, link) if link is not None else part
    gpu = gpu or (interpreted_gpu.InterpretedGpu if part is None else SharedInterpretedGpu)()
    stream = gpu.create_stream()
    source = source or LocalSource(path)
    whole: Placement = WholeFile(reader.header)
    if groups:
        whole = SomeGroups(reader.header, groups)
    if part is not None:
        spec, whole = part.spec, Sharded(reader.header, part.cuts)
    check_supported(spec)
    if options.stream.stream == "on":
        arrival = StreamedArrival(gpu, source, reader.header.loaded(), options.stream)
    else:
        arrival = Arrival(gpu, source, whole, plan_load(source, whole), peers=peers)
    load = ModelLoad(reader=reader, spec=spec, options=options, forward=forward_of(spec), part=part)
    launcher = (launches or interpreted_gpu.StreamLauncher)(stream)
    backend = build_backend(stream, lambda: launcher, arrival, load)
    owned = ExitStack()
    owned.callback(reader.close)
    owned.callback(backend.close)
    return ModelRunner(backend, model, part, owned=owned, max_position=spec.max_position)
