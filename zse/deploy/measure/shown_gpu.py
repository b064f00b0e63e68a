"""What of a machine's GPUs a container is shown, as NVIDIA's container toolkit does it."""

from __future__ import annotations

from pathlib import Path

_DRIVER = "libcuda.so.1"
_PLATFORMS_FOLDERS = ("usr/local/nvidia/lib64", "usr/local/nvidia/lib")
"""Where Kubernetes on Google Cloud and others put the driver."""


def gpu_binds(rootfs: Path, machine: Path = Path("/")) -> dict[str, str]:
    """Return path in a container -> path of this machine: devices, and the driver's library.

    Args:
        rootfs: The container's root; it says where its libraries lie.
        machine: This machine's root.
    """
    devices = {f"/dev/{path.name}": str(path) for path in sorted(machine.glob("dev/nvidia*"))}
    if not devices:
        return {}
    folders = [*machine.glob("usr/lib/*-linux-gnu"), machine / "usr/lib64"]
    folders += [machine / name for name in _PLATFORMS_FOLDERS]
    driver = next((folder / _DRIVER for folder in folders if (folder / _DRIVER).exists()), None)
    inside = next(rootfs.glob("usr/lib/*-linux-gnu"), rootfs / "usr/lib")
    if driver is not None:
        devices[f"/{inside.relative_to(rootfs)}/{_DRIVER}"] = str(driver.resolve())
    return devices
