"""Backends: the dozen operations, executed on one kind of device.

``create_backend`` picks one; its module, and what that stands on, is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device import cuda_driver_present
from zse.errors import DeviceError, MissingDependencyError

if TYPE_CHECKING:
    from zse.backends.options import BackendOptions, ModelShape
    from zse.backends.protocol import Backend
    from zse.format import ZSEReader

DEVICES = ("auto", "cpu")


def create_backend(
    device: str, reader: ZSEReader, shape: ModelShape, *, options: BackendOptions
) -> Backend:
    """Load a file's weights onto a device and make its KV pool.

    Args:
        device: auto, cpu or cuda[:N].
        reader: The open file; it must stay open while the backend lives.
        shape: The numbers of the model that the operations need.
        options: Sizes and numbers of threads.

    Raises:
        DeviceError: The device is unknown, absent or has too little memory.
        MissingDependencyError: The backend stands on a package that is not installed.
    """
    if device.startswith("cuda"):
        found = "a CUDA driver is" if cuda_driver_present() else "no CUDA driver is"
        raise DeviceError(
            f"device {device!r} was asked for; {found} present, and this build has no CUDA runtime",
            hint="Use --device cpu.",
        )
    if device not in DEVICES:
        raise DeviceError(
            f"device {device!r} is not known", hint=f"Known devices: {', '.join(DEVICES)}."
        )
    try:
        from zse.backends.cpu import CPUBackend
    except ImportError as error:
        raise MissingDependencyError(
            f"the cpu backend needs torch, which cannot be imported: {error}",
            hint="Install it with: pip install 'zllm-zse[cpu]'",
        ) from error
    return CPUBackend(reader, shape, options)
