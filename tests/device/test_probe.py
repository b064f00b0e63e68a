"""The probe reads the kernel's files, within the container's limit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zse.device.probe import probe

if TYPE_CHECKING:
    from pathlib import Path

CPUINFO = """processor\t: {0}
model name\t: Test Processor 9000
physical id\t: 0
core id\t\t: 0

processor\t: {1}
model name\t: Test Processor 9000
physical id\t: 0
core id\t\t: 0
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(total_kib: int, available_kib: int) -> str:
    return f"MemTotal: {total_kib} kB\nMemAvailable:  {available_kib} kB\n"


def test_this_machine_has_cores_and_memory() -> None:
    found = probe()
    assert found.cpu_model
    assert 1 <= found.physical_cores <= (os.cpu_count() or 1)
    assert 0 < found.available_memory_bytes <= found.total_memory_bytes


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    files = {"proc/cpuinfo": CPUINFO.format(first, first), "proc/meminfo": meminfo(100, 60)}
    found = probe(tree(tmp_path, files))
    assert found.cpu_model == "Test Processor 9000"
    assert found.physical_cores == 1
    assert (found.total_memory_bytes, found.available_memory_bytes) == (102400, 61440)


def test_container_limit_cuts_the_memory(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(1000, 900),
        "sys/fs/cgroup/memory.max": "512000\n",
        "sys/fs/cgroup/memory.current": "112000\n",
    }
    found = probe(tree(tmp_path, files))
    assert (found.total_memory_bytes, found.available_memory_bytes) == (512000, 400000)


def test_missing_files_are_not_an_error(tmp_path: Path) -> None:
    found = probe(tree(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"}))
    assert found.total_memory_bytes == 0
    assert found.physical_cores == len(os.sched_getaffinity(0))
