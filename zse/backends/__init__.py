"""Backends: the dozen operations, executed on one kind of device.

``create_backend`` picks one; its module, and what that stands on, is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.open import check_device, runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.errors import DeviceError, needing
from zse.format import ZSEReader

if TYPE_CHECKING:
    from pathlib import Path

    from zse.backends.gpu.arrival import Arrival
    from zse.backends.operations import Backend, Forward
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec
    from zse.options import DeviceOptions, LoadOptions


def preload(device: str) -> None:
    """Import a GPU's backend ahead of ``create_backend``, while the GPU is being opened."""
    if runs_on_gpu(device):
        import zse.backends.gpu.open  # noqa: F401 - for its effect


def begin_arrival(
    options: DeviceOptions, reader: ModelFile, *, phases: Phases = no_phases
) -> Arrival | None:
    """Send a file's weights on their way to a GPU, ahead of ``create_backend``.

    Args:
        options: Which device, and how much of its memory everything may take.
        reader: The open file.
        phases: Told what takes the time.

    Returns:
        What ``create_backend`` takes over; None where the device is no GPU.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        StoreError: The file cannot be read.
    """
    check_device(options.name)
    if not runs_on_gpu(options.name):
        return None
    from zse.backends.gpu.arrival import Arrival

    return Arrival.begin(options.name, reader, allowed_bytes=options.vram_bytes, phases=phases)


def create_backend(
    reader: ModelFile,
    spec: ModelSpec,
    options: LoadOptions,
    *,
    forward: Forward,
    cache_dir: Path | None = None,
    arrival: Arrival | None = None,
    phases: Phases = no_phases,
) -> Backend:
    """Load a file's weights onto a device and make its KV pool.

    Args:
        reader: The open file; it must stay open while the backend lives.
        spec: The model.
        options: Where and how; the context is no longer than the model's.
        forward: The pass that steps will make; a GPU prepares it while the weights arrive.
        cache_dir: Where kernel packs and tables of this machine lie; None looks nowhere.
        arrival: The weights, if they are on their way; taken over.
        phases: Told what takes the time.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        MissingDependencyError: The backend stands on a package that is not installed.
    """
    arrival = arrival or begin_arrival(options.device, reader, phases=phases)
    if arrival is not None:
        from zse.backends.gpu.open import open_gpu_backend

        return open_gpu_backend(
            arrival, reader, spec, options, forward, cache_dir=cache_dir, phases=phases
        )
    with needing("cpu", "the cpu backend"):
        from zse.backends.cpu import CPUBackend
    if not isinstance(reader, ZSEReader):
        raise DeviceError(
            f"a CPU reads its weights from a file of this machine, not from {reader.path}",
            hint="Fetch it first: zse pull URL.",
        )
    return CPUBackend(reader, spec, options)
