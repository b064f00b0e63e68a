"""From a model's name to its open file, and on a GPU to weights that are on their way.

The server does this before it imports the engine, so nothing here may need the engine.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zse.backends import begin_arrival, begin_to_map
from zse.device.open import check_device, runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.errors import UsageError
from zse.format.reader import ZSEReader
from zse.records import record

if TYPE_CHECKING:
    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.retained import Retained
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.engine.ranks.opening import OpenedRanks
    from zse.engine.ranks.processes import RankProcesses
    from zse.format.model_file import ModelFile
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress
    from zse.server_options import PeerOptions
    from zse.settings import Settings
    from zse.stream.peers.beside import PeerMemory


@record
class OpenedModel:
    """A model whose file is open; what ``load_model`` makes an engine of."""

    reader: ModelFile
    arrival: Arrival | StreamedArrival | None
    """Its weights on their way to a GPU; None on a CPU."""
    ranks: OpenedRanks | None = None
    """The other devices that compute it, which load their shares meanwhile."""

    def abandon(self) -> None:
        """Give everything back, when no engine is made of it."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.reader.close)
            if self.arrival is not None:
                stack.callback(self.arrival.abandon)
            if self.ranks is not None:
                stack.callback(self.ranks.group.close)


def open_model(
    model: str | Path,
    options: LoadOptions,
    settings: Settings,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> OpenedModel:
    """Open the file of what ``locate_model`` accepts and, on a GPU, send its weights on their way.

    A file in object storage is not fetched when a GPU can be fed from there. ``phases`` are told
    what takes the time, ``progress`` how far a conversion or a download is.

    Raises:
        NotFoundError: There is no such file or model.
        ConversionError: The checkpoint cannot be converted.
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
    """
    reader = open_file(model, options, settings, phases=phases, progress=progress)
    peering = settings.serve.peering
    return send_weights(reader, options, phases, cache_dir=settings.cache_dir, peering=peering)


def open_file(
    model: str | Path,
    options: LoadOptions,
    settings: Settings,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> ModelFile:
    """Do the first half of ``open_model``, which needs no device.

    Raises:
        UsageError: Options say what would not be done.
    """
    check_device(options.device.name)
    _check_together(options)
    with phases("model-file"):
        return _open_file(model, options, settings, progress)


def _check_together(options: LoadOptions) -> None:
    """Refuse what would be ignored beside what else was asked for.

    Raises:
        UsageError: It is asked for.
    """
    stream, cache = options.stream, options.cache
    idle = {"--ram-gib": stream.ram_gib, "--resident-layers": stream.resident_layers}
    flag = next((name for name, value in idle.items() if value), "")
    if flag and stream.stream == "off":
        raise UsageError(
            f"{flag} is for layers that stream, and --stream is off",
            hint=f"Leave {flag} out, or take --stream auto.",
        )
    if cache.prefix_key_file and not cache.prefix_store:
        raise UsageError(
            "--prefix-key-file encrypts what is kept in --prefix-store, and there is none",
            hint="Name a store as well, or leave the key out: nothing is kept without one.",
        )


def send_weights(
    reader: ModelFile,
    options: LoadOptions,
    phases: Phases = no_phases,
    retained: Retained | None = None,
    *,
    cache_dir: Path | None = None,
    peering: PeerOptions | None = None,
    processes: RankProcesses | None = None,
) -> OpenedModel:
    """Do the second half, which waits for the GPU; the reader is closed where it fails.

    Where several devices compute the model, the processes of the others are started here, unless
    they were before (``processes``); kernel packs and tables of this machine lie in
    ``cache_dir``. ``peering`` says whether weights are copied out of the GPU memory of replicas on
    this host, and are lent to them.
    """
    if options.ranks.num_devices > 1:
        from zse.engine.ranks.opening import open_ranks  # which a single device does without

        ranks = open_ranks(reader, options, phases, cache_dir=cache_dir, processes=processes)
        return OpenedModel(reader=reader, arrival=ranks.arrival, ranks=ranks)
    try:
        peers = _peer_memory(peering)
        arrival = begin_arrival(options, reader, phases=phases, retained=retained, peers=peers)
        if arrival is None and not options.stream.ram_bytes:
            begin_to_map(reader)
    except BaseException:
        reader.close()
        raise
    return OpenedModel(reader=reader, arrival=arrival)


def _peer_memory(peering: PeerOptions | None) -> PeerMemory | None:
    """Return what looks for replicas on this host; None where there are no replicas."""
    if peering is None or not peering.are_wanted or peering.share_memory == "off":
        return None
    from zse.stream.peers.beside import PeerMemory  # which a single server does without

    return PeerMemory(peering)


def _open_file(
    model: str | Path, options: LoadOptions, settings: Settings, progress: StageProgress | None
) -> ModelFile:
    path = Path(model)
    if path.suffix == ".zse" and path.is_file():
        return ZSEReader(path)  # without what knows addresses and converts
    from zse.models.resolve import LocalFile, OciFile, RemoteFile, resolve_model

    named = resolve_model(model)
    if isinstance(named, LocalFile):
        return ZSEReader(named.path)
    if isinstance(named, OciFile):
        from zse.stream.opening import open_remote, registry_reader

        if runs_on_gpu(options.device.name):
            return open_remote(named.reference, settings)
        told = None if progress is None else partial(progress, "fetch")
        return ZSEReader(registry_reader().fetch_oci(named.reference, settings, told))
    if isinstance(named, RemoteFile) and settings.serve.peering.are_wanted:
        from zse.stream.peers.opening import open_shared

        return open_shared(named.location, settings, is_streamed=runs_on_gpu(options.device.name))
    if isinstance(named, RemoteFile):
        # Several devices would each fetch what they share: the file is fetched once for all.
        if runs_on_gpu(options.device.name) and options.ranks.num_devices == 1:
            from zse.stream.opening import open_remote

            return open_remote(named.location, settings)
        from zse.store.cache import Cache

        notify = None if progress is None else partial(progress, "fetch")
        return ZSEReader(Cache(settings).fetch(named.location, notify))
    # Only a checkpoint needs what converts, which images leave out.
    from zse.quantize.locate import locate_model

    return ZSEReader(locate_model(model, settings, quant=options.quant, progress=progress))
