"""How much memory this process may have: the machine's, cut to the container's limit."""

from __future__ import annotations

from pathlib import Path

from zse.device.cgroup import memory_limits, read_text
from zse.units import KIB


def host_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Return total and available bytes."""
    meminfo = read_text(root / "proc/meminfo")
    total, available = _kib(meminfo, "MemTotal"), _kib(meminfo, "MemAvailable")
    for group in memory_limits(root):
        if group.limit_bytes < total:
            total = group.limit_bytes
        available = min(available, max(group.limit_bytes - group.used_bytes, 0))
    return total, available


def field_of(text: str, name: str) -> str:
    """Return what stands behind the first ``name:`` of a file of /proc; empty if nothing does."""
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip() == name:
            return value.strip()
    return ""


def _kib(meminfo: str, name: str) -> int:
    words = field_of(meminfo, name).split()
    return int(words[0]) * KIB if words and words[0].isdigit() else 0
