"""What a benchmark's JSON line says of the machine and the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from zse import __version__
from zse.device.cuda.errors import CudaError
from zse.device.cuda.info import count_devices, read_info
from zse.device.cuda.library import Driver, version_text


def machine_facts() -> dict[str, object]:
    """Return commit, device, GPU if there is one, number of CPUs and versions."""
    return {
        "commit": commit(),
        "device": cpu_name(),
        **gpu_facts(),
        "num_cpus": os.cpu_count(),
        "versions": {
            "zse": __version__,
            "torch": installed_version("torch"),
            "python": platform.python_version(),
        },
    }


def gpu_facts() -> dict[str, object]:
    """Return the first GPU's name, its memory and the driver; nothing where there is none."""
    try:
        driver = Driver()
        driver.version()
        if not count_devices(driver):
            return {}
        info = read_info(driver, 0)
    except CudaError:
        return {}
    release = Path("/sys/module/nvidia/version")
    return {
        "gpu": info.name,
        "gpu_bytes": info.total_bytes,
        "cuda_version": version_text(info.driver_version),
        "driver": release.read_text().strip() if release.is_file() else "",
    }


def commit() -> str:
    run = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return run.stdout.strip()


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
