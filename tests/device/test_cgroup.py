"""Limits of control groups, of both versions, wherever above the process they stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zse.device.cgroup import MemoryLimit, cpu_quota, memory_limits
from zse.device.probe import DeviceInfo, probe


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(cores: int, quota: float) -> DeviceInfo:
    return DeviceInfo(
        cpu_model="a processor",
        physical_cores=cores,
        cpu_quota=quota,
        total_memory_bytes=1,
        available_memory_bytes=1,
        cuda_driver=False,
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0.0),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 0.0),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "nonsense\n"}, 0.0),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.0,
        ),
    ],
    ids=["no files", "unlimited", "version 2", "nonsense", "version 1", "version 1 unlimited"],
)
def test_the_quota_is_read_from_either_version(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    assert cpu_quota(tree(tmp_path, files)) == expected


def test_the_tightest_quota_of_the_groups_above_the_process_holds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pods/one/server\n",
        "sys/fs/cgroup/pods/one/server/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/pods/one/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/pods/cpu.max": "max 100000\n",
        "sys/fs/cgroup/elsewhere/cpu.max": "10000 100000\n",
    }
    assert cpu_quota(tree(tmp_path, files)) == 2.0


def test_a_path_of_the_host_falls_back_to_the_mounts_root(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/0123\n3:memory:/docker/0123\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "400\n",
    }
    root = tree(tmp_path, files)
    assert cpu_quota(root) == 1.0
    assert memory_limits(root) == [MemoryLimit(limit_bytes=1000, used_bytes=400)]


def test_a_path_that_climbs_out_of_the_mount_is_not_followed(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/../../outside\n",
        "sys/outside/cpu.max": "100000 100000\n",
        "outside/cpu.max": "100000 100000\n",
    }
    assert cpu_quota(tree(tmp_path, files)) == 0.0


def test_file_pages_that_the_kernel_would_drop_do_not_count_as_used(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
        "sys/fs/cgroup/memory.max": "512000\n",
        "sys/fs/cgroup/memory.current": "412000\n",
        "sys/fs/cgroup/memory.stat": "anon 100000\ninactive_file 300000\nactive_file 12000\n",
    }
    assert probe(tree(tmp_path, files)).available_memory_bytes == 400000


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [(8, 0.0, 8), (8, 2.0, 2), (8, 1.5, 2), (8, 0.25, 1), (2, 16.0, 2)],
)
def test_threads_are_the_cores_within_the_quota(cores: int, quota: float, threads: int) -> None:
    assert machine(cores, quota).compute_threads == threads


def test_the_quota_of_this_machine_is_no_less_than_nothing() -> None:
    found = probe(Path("/"))
    assert found.cpu_quota >= 0
    assert 1 <= found.compute_threads <= len(os.sched_getaffinity(0))
