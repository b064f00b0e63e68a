"""What a benchmark's JSON line says of the machine and the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from zse import __version__


def machine_facts() -> dict[str, object]:
    """Return commit, device, number of CPUs and versions."""
    return {
        "commit": commit(),
        "device": cpu_name(),
        "num_cpus": os.cpu_count(),
        "versions": {
            "zse": __version__,
            "torch": installed_version("torch"),
            "python": platform.python_version(),
        },
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
