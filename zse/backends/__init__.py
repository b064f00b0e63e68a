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
    from zse.backends.gpu.arrival import Arrival
    from zse.backends.options import BackendOptions
    from zse.backends.protocol import Backend, Forward
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec


def preload(device: str) -> None:
    """Import a GPU's backend ahead of ``create_backend``, while the GPU is being opened."""
    if runs_on_gpu(device):
        import zse.backends.gpu.open  # noqa: F401 - for its effect


def begin_arrival(
    device: str, reader: ModelFile, *, vram_bytes: int = 0, phases: Phases = no_phases
) -> Arrival | None:
    """Send a file's weights on their way to a GPU, ahead of ``create_backend``.

    Args:
        device: auto, cpu or cuda[:N].
        reader: The open file.
        vram_bytes: GPU memory that everything may take; 0 is all.
        phases: Told what takes the time.

    Returns:
        What ``create_backend`` takes over; None where the device is no GPU.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        StoreError: The file cannot be read.
    """
    check_device(device)
    if not runs_on_gpu(device):
        return None
    from zse.backends.gpu.arrival import Arrival

    return Arrival.begin(device, reader, allowed_bytes=vram_bytes, phases=phases)


def create_backend(
    device: str,
    reader: ModelFile,
    spec: ModelSpec,
    *,
    options: BackendOptions,
    forward: Forward,
    arrival: Arrival | None = None,
    phases: Phases = no_phases,
) -> Backend:
    """Load a file's weights onto a device and make its KV pool.

    Args:
        device: auto, cpu or cuda[:N].
        reader: The open file; it must stay open while the backend lives.
        spec: The model.
        options: Sizes and numbers of threads.
        forward: The pass that steps will make; a GPU prepares it while the weights arrive.
        arrival: The weights, if they are on their way; taken over.
        phases: Told what takes the time.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        MissingDependencyError: The backend stands on a package that is not installed.
    """
    arrival = arrival or begin_arrival(device, reader, vram_bytes=options.vram_bytes, phases=phases)
    if arrival is not None:
        from zse.backends.gpu.open import open_gpu_backend

        return open_gpu_backend(arrival, reader, spec, options, forward, phases)
    with needing("cpu", "the cpu backend"):
        from zse.backends.cpu import CPUBackend
    if not isinstance(reader, ZSEReader):
        raise DeviceError(
            f"a CPU reads its weights from a file of this machine, not from {reader.path}",
            hint="Fetch it first: zse pull URL.",
        )
    return CPUBackend(reader, spec, options)
