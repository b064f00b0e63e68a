"""From weights on their way to a GPU backend: kernels, KV pool, tables, the first graph."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from zse.backends.gpu.backend import GPUBackend
from zse.backends.gpu.kv_pool import BLOCK_SIZE, KVLayout, KVPool, layout_for
from zse.backends.gpu.launcher import PackLauncher
from zse.backends.gpu.memory import SCRATCH_RANGE_BYTES, DeviceMemory, choose_num_blocks
from zse.backends.gpu.model import DeviceModel
from zse.backends.gpu.operations import check_supported
from zse.backends.gpu.outliers import outlier_layers
from zse.backends.gpu.weights import DeviceWeights
from zse.device.phases import Phases, no_phases
from zse.errors import DeviceError
from zse.kernels.find import find_pack
from zse.kernels.tuning import Tuning
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.arrival import Arrival
    from zse.backends.operations import Forward
    from zse.device.gpu import Stream
    from zse.format.model_file import ModelFile
    from zse.kernels.launcher import Launcher
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.backends.gpu")
_KV_DTYPES = {"auto": "bf16", "bf16": "bf16", "int8": "int8"}


@record
class Hardware:
    """What is made on an open GPU."""

    stream: Stream
    make_launcher: Callable[[], Launcher]
    cache_dir: Path | None = None
    """Where its tuning tables lie, besides those that are shipped."""


def open_gpu_backend(
    arrival: Arrival,
    reader: ModelFile,
    spec: ModelSpec,
    options: LoadOptions,
    forward: Forward,
    *,
    cache_dir: Path | None = None,
    phases: Phases = no_phases,
) -> GPUBackend:
    """Build a backend around weights that are on their way.

    Args:
        arrival: The GPU and the weights; the backend takes them over, an error gives them back.
        reader: The open file.
        spec: The model.
        options: Where and how.
        forward: The pass that is prepared while the weights arrive.
        cache_dir: Where kernel packs and tables of this machine lie; None looks nowhere.
        phases: Told what takes the time.

    Raises:
        DeviceError: The GPU is too small, or an option has no meaning for it.
        KernelPackError: There are no kernels for it.
        StoreError: The file changed or failed on its way.
    """
    try:
        check_supported(spec)
        gpu = arrival.gpu
        gpu.make_current()  # another thread may have opened it
        stream = gpu.create_stream()

        def make_launcher() -> Launcher:
            named = options.device.kernels
            pack = find_pack(
                gpu.info,
                explicit=Path(named) if named else None,
                sections=reader,
                cache_dir=cache_dir,
            )
            return PackLauncher(gpu, pack, stream)

        hardware = Hardware(stream=stream, make_launcher=make_launcher, cache_dir=cache_dir)
        return build_backend(hardware, arrival, reader, spec, options, forward, phases)
    except BaseException:
        arrival.abandon()
        raise


def build_backend(
    hardware: Hardware,
    arrival: Arrival,
    reader: ModelFile,
    spec: ModelSpec,
    options: LoadOptions,
    forward: Forward,
    phases: Phases = no_phases,
) -> GPUBackend:
    """Make everything else while the weights arrive, then wait for them.

    Raises:
        DeviceError: The GPU is too small, or an option has no meaning for it.
        StoreError: The file changed or failed on its way.
    """
    _check_options(options)
    kv_dtype = _KV_DTYPES[options.cache.kv_dtype]
    kept = outlier_layers(arrival.source, reader.header, spec) if kv_dtype == "int8" else ()
    layout = layout_for(spec, kv_dtype, kept)
    weights = DeviceWeights(arrival.gpu, arrival.placement, arrival.block)
    with phases("kernels"):
        launcher = hardware.make_launcher()
    with phases("kv-cache"):
        tuning = Tuning.load(launcher.device.name, cache_dir=hardware.cache_dir)
        model = DeviceModel(arrival.gpu, launcher.device, weights, spec, options, tuning)
        memory = _share_out(arrival, model, layout, options)
        model.make_tables(launcher, hardware.stream)
    backend = GPUBackend(arrival.gpu, hardware.stream, launcher, model, memory)
    with phases("warm-up"):
        backend.warm(forward)
    with phases("weights-to-gpu"):
        report = arrival.wait()
    figures = {
        "gigabytes": round(report.num_bytes / 1e9, 3),
        "gigabytes_per_second": round(report.gigabytes_per_second, 2),
        "source": report.source,
    }
    _LOG.info("weights are on the GPU", extra=figures)
    weights.widen_vectors(hardware.stream)
    return backend


def _share_out(
    arrival: Arrival, model: DeviceModel, layout: KVLayout, options: LoadOptions
) -> DeviceMemory:
    """Take what a backend holds besides its weights; the KV pool gets what is left."""
    budget = arrival.budget.with_scratch(model.plans.largest_scratch_bytes())
    num_blocks = choose_num_blocks(budget, layout, model.spec, options)
    return DeviceMemory(
        cache=KVPool(arrival.gpu, layout, num_blocks),
        scratch=arrival.gpu.create_pool(SCRATCH_RANGE_BYTES),
    )


def _check_options(options: LoadOptions) -> None:
    if options.cache.kv_dtype not in _KV_DTYPES:
        raise DeviceError(
            f"a GPU keeps no {options.cache.kv_dtype} KV cache",
            hint=f"Choose one of {', '.join(_KV_DTYPES)}.",
        )
    if options.cache.block_size != BLOCK_SIZE:
        raise DeviceError(
            f"KV blocks of {options.cache.block_size} tokens were asked for; on a GPU they have "
            f"{BLOCK_SIZE}",
            hint="Leave the block size out.",
        )
