"""How many threads compute: as many as have work, on cores that may be used."""

from __future__ import annotations

import pytest

from zse.backends.cpu.backend import choose_threads
from zse.device.probe import DeviceInfo

MIB = 1 << 20


@pytest.mark.parametrize(
    ("cores", "quota", "weight_bytes", "threads"),
    [
        (8, 0.0, 4 * MIB, 1),
        (8, 0.0, 20 * MIB, 2),
        (8, 0.0, 300 * MIB, 8),
        (8, 2.5, 300 * MIB, 3),
        (1, 0.0, 300 * MIB, 1),
    ],
)
def test_each_thread_has_work_and_a_core(
    cores: int, quota: float, weight_bytes: int, threads: int
) -> None:
    machine = DeviceInfo(
        cpu_model="a processor",
        physical_cores=cores,
        cpu_quota=quota,
        total_memory_bytes=1,
        available_memory_bytes=1,
        cuda_driver=False,
    )
    assert choose_threads(machine, weight_bytes) == threads
