"""From a model's name to its open file, and on a GPU to weights that are on their way.

The server does this before it imports the engine, so nothing here may need the engine.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zse.backends import begin_arrival, check_device, runs_on_gpu
from zse.backends.options import DEFAULT_BLOCK_SIZE, KV_DTYPES
from zse.device.phases import Phases, no_phases
from zse.engine.remote import fetch_model
from zse.errors import UsageError
from zse.format.reader import ZSEReader
from zse.records import record
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.backends.gpu.arrival import Arrival
    from zse.format.model_file import ModelFile
    from zse.models.resolve import NamedModel

GIB = 1 << 30
StageProgress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done_bytes, total_bytes)``; a stage is ``fetch`` or ``convert``."""
MAX_THREADS = 1024
"""Far more than any machine has cores; the runtime below crashes where it cannot start them all."""


@record
class LoadOptions:
    """How a model is placed on a device."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    quant: str | None = None
    """Scheme to convert to when the model is not a .zse file yet; None means the default."""
    kv_gib: float = 0.0
    """Memory for the KV cache in GiB; 0 means chosen from what is free."""
    vram_gib: float = 0.0
    """GPU memory for everything, in GiB; 0 means all that is free."""
    kv_dtype: str = "auto"
    """Type of the cached keys and values: auto, fp32, bf16 or int8."""
    exact_activations: bool = False
    """Never round activations to 8 bits on a GPU."""
    kernels: str = ""
    """Kernel pack for the GPU; empty looks in the model file, the image and the cache."""
    num_blocks: int = 0
    """Blocks of the KV cache; wins over ``kv_gib``."""
    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens a block."""
    threads: int = 0
    """CPU threads; 0 means one a core, within the container's quota."""
    max_context: int = 0
    """Longest sequence in tokens; 0 means what the model says."""
    max_batch_tokens: int = 2048
    max_sequences: int = 64
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("kv_gib", "vram_gib", "num_blocks", "threads", "max_context"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if self.threads > MAX_THREADS:
            raise UsageError(f"threads is {self.threads}, expected 0 to {MAX_THREADS}")
        for name in ("block_size", "max_batch_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, expected 1 or more")
        check_device(self.device)
        if self.kv_dtype not in KV_DTYPES:
            known = ", ".join(KV_DTYPES)
            raise UsageError(
                f"the KV type {self.kv_dtype!r} is not known", hint=f"Choose one of {known}."
            )


@record
class OpenedModel:
    """A model whose file is open; what ``load_model`` makes an engine of."""

    reader: ModelFile
    arrival: Arrival | None
    """Its weights on their way to a GPU; None on a CPU."""

    def abandon(self) -> None:
        """Give everything back, when no engine is made of it."""
        try:
            if self.arrival is not None:
                self.arrival.abandon()
        finally:
            self.reader.close()


def open_model(
    model: str | Path,
    options: LoadOptions,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> OpenedModel:
    """Open a model's file and, on a GPU, send its weights on their way.

    A file in object storage is not fetched when a GPU can be fed from there.

    Args:
        model: Anything ``locate_model`` accepts.
        options: Where and how.
        phases: Told what takes the time.
        progress: Called while a checkpoint is converted or a file is fetched.

    Raises:
        NotFoundError: There is no such file or model.
        ConversionError: The checkpoint cannot be converted.
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
    """
    with phases("model-file"):
        reader = _open_file(model, options, progress)
    try:
        arrival = begin_arrival(
            options.device, reader, vram_bytes=int(options.vram_gib * GIB), phases=phases
        )
    except BaseException:
        reader.close()
        raise
    return OpenedModel(reader=reader, arrival=arrival)


def locate_model(
    model: str | Path, *, quant: str | None = None, progress: StageProgress | None = None
) -> Path:
    """Return the .zse file of a model, converting a checkpoint into the cache when it is none.

    Args:
        model: Anything ``resolve_model`` knows. What is behind an address is fetched, what is a
            checkpoint is converted, both once, into the cache.
        quant: Scheme to convert to.
        progress: Called while the checkpoint is converted or the file is fetched.

    Raises:
        UsageError: The address is malformed.
        NotFoundError: There is no such file or model.
        StoreError: The storage failed.
        ConversionError: The checkpoint cannot be converted.
    """
    path = Path(model)
    if path.suffix == ".zse" and path.is_file():
        return path
    # By name: a file of this machine is served without what knows addresses and converts.
    resolve = importlib.import_module("zse.models.resolve")
    named: NamedModel = resolve.resolve_model(model)
    if isinstance(named, resolve.LocalFile):
        return Path(named.path)
    cache_dir = load_settings().cache_dir
    notify = progress or _ignore
    if isinstance(named, resolve.RemoteFile):
        return fetch_model(named.location, cache_dir, partial(notify, "fetch"))
    builtin = importlib.import_module("zse.quantize.builtin")
    return Path(
        builtin.ensure_zse(
            model,
            quant=quant,
            cache_dir=cache_dir,
            progress=lambda now: notify(now.stage, now.done_bytes, now.total_bytes),
        )
    )


def _open_file(
    model: str | Path, options: LoadOptions, progress: StageProgress | None
) -> ModelFile:
    if str(model).startswith("s3://") and runs_on_gpu(options.device):
        # By name, as in ``fetch_model``.
        remote = importlib.import_module("zse.stream.remote")
        opening = importlib.import_module("zse.stream.opening")
        reader: ModelFile = remote.RemoteReader(opening.open_source(str(model)))
        return reader
    return ZSEReader(locate_model(model, quant=options.quant, progress=progress))


def _ignore(stage: str, done_bytes: int, total_bytes: int) -> None:
    """Report to nobody."""
