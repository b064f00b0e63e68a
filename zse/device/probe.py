"""One look at the machine: processor, memory, whether a CUDA driver is there."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import replace
from pathlib import Path

from zse.device.open import cuda_driver_present
from zse.records import record
from zse.units import KIB


@record
class DeviceInfo:
    """What the machine offers to this process."""

    cpu_model: str
    physical_cores: int
    """Cores that this process may use; hyper-threads of one core count once."""
    cpu_quota: float
    """CPUs' worth of time that the container's limit grants; 0 where there is no limit."""
    total_memory_bytes: int
    available_memory_bytes: int
    """What can be taken without swapping, within the container's limit."""
    cuda_driver: bool
    """Whether libcuda can be loaded. It says nothing about a working GPU."""

    @property
    def compute_threads(self) -> int:
        """Threads to compute with: one a core, and no more than the quota keeps running.

        A thread beyond the quota adds nothing: all of them are stopped once it is used up.
        """
        if not self.cpu_quota:
            return self.physical_cores
        return max(1, min(self.physical_cores, math.ceil(self.cpu_quota)))

    def divided(self, count: int) -> DeviceInfo:
        """Return what each of so many processes has of it that share it evenly."""
        return replace(
            self,
            physical_cores=max(1, self.physical_cores // count),
            cpu_quota=self.cpu_quota / count,
            available_memory_bytes=self.available_memory_bytes // count,
        )


def probe(root: Path = Path("/")) -> DeviceInfo:
    """Look at the machine once; ``proc`` and ``sys`` are in ``root``."""
    from zse.device.cgroup import cpu_quota, read_text  # a server on a GPU never asks

    cpuinfo = read_text(root / "proc/cpuinfo")
    total, available = _memory(root)
    return DeviceInfo(
        cpu_model=_field(cpuinfo, "model name") or platform.machine(),
        physical_cores=_physical_cores(cpuinfo),
        cpu_quota=cpu_quota(root),
        total_memory_bytes=total,
        available_memory_bytes=available,
        cuda_driver=cuda_driver_present(),
    )


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip() == name:
            return value.strip()
    return ""


def _physical_cores(cpuinfo: str) -> int:
    usable = os.sched_getaffinity(0)
    cores: set[tuple[str, str]] = set()
    for paragraph in cpuinfo.split("\n\n"):
        processor = _field(paragraph, "processor")
        if processor.isdigit() and int(processor) in usable:
            core = _field(paragraph, "core id") or processor
            cores.add((_field(paragraph, "physical id"), core))
    return len(cores) or len(usable)


def _memory(root: Path) -> tuple[int, int]:
    """Return total and available bytes: the machine's, cut to the container's limit."""
    from zse.device.cgroup import memory_limits, read_text

    meminfo = read_text(root / "proc/meminfo")
    total, available = _kib(meminfo, "MemTotal"), _kib(meminfo, "MemAvailable")
    for group in memory_limits(root):
        if group.limit_bytes < total:
            total = group.limit_bytes
        available = min(available, max(group.limit_bytes - group.used_bytes, 0))
    return total, available


def _kib(meminfo: str, name: str) -> int:
    words = _field(meminfo, name).split()
    return int(words[0]) * KIB if words and words[0].isdigit() else 0
