"""Devices by name, and the one place that knows whose GPU stands behind a name."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from zse.device.early import early
from zse.errors import DeviceError

if TYPE_CHECKING:
    from zse.device.gpu import Gpu

DEVICES = ("auto", "cpu", "torch", "cuda")


def check_device(device: str) -> int:
    """Return which GPU a device's name means, 0 where it names none.

    Raises:
        DeviceError: It is no device's name.
    """
    kind, _, ordinal = device.partition(":")
    if kind not in DEVICES or (ordinal and not (kind == "cuda" and ordinal.isdecimal())):
        raise DeviceError(
            f"device {device!r} is not known", hint=f"Known devices: {', '.join(DEVICES)}, cuda:N."
        )
    return int(ordinal or 0)


def runs_on_gpu(device: str) -> bool:
    kind = device.partition(":")[0]
    return kind == "cuda" or (kind == "auto" and cuda_device_present())


def open_gpu(device: str) -> Gpu:
    """Open the GPU that a device's name means: about 0.2 s, nearly all of it the driver's.

    Raises:
        DeviceError: It is no device's name, or the GPU is absent, busy or too old.
    """
    ordinal = check_device(device)
    from zse.device.cuda.gpu import Gpu

    early.wait()

    return Gpu.open(ordinal)


def free_gpu_bytes(device: str) -> int:
    """Return what is free on the GPU that a device's name means; 0 where it cannot be opened.

    A process that has it open already asks for a microsecond; no other GPU is touched.
    """
    try:
        gpu = open_gpu(device)
    except DeviceError:
        return 0
    try:
        return gpu.memory()[0]
    finally:
        gpu.close()


def keep_code(device: str) -> None:
    """Let code stay on a GPU when the model leaves that it was loaded for; no GPU is opened."""
    if runs_on_gpu(device):
        from zse.device.cuda import kept

        kept.keep_code()


def drop_code(device: str) -> None:
    """Give back code that stayed; no model may be on the GPU."""
    if runs_on_gpu(device):
        from zse.device.cuda import kept

        kept.drop_code()


def cuda_driver_present() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def cuda_device_present(root: Path = Path("/")) -> bool:
    """Return whether there is a GPU and a driver for it; neither is started by asking."""
    dev = root / "dev"
    nodes = any(dev.glob("nvidia[0-9]*")) or (dev / "dxg").exists()  # the latter is Windows' own
    return nodes and cuda_driver_present()
