"""What this machine can give a mesh: its memory, and how fast it reads and copies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse import __version__
from zse.device.open import check_device, runs_on_gpu
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.errors import DeviceError
from zse.mesh.messages import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

_PROBE_BYTES = 32 << 20
_PROBE_SECONDS = 0.25
"""More than two of the periods, 0.1 s as a rule, in which a container has its limited time."""
_MEMORY_SHARE = 0.8
"""Of what is available: the rest is for the system and what else runs."""
_GPU_READ_SHARE = 0.6
"""Of a GPU's bandwidth: what decode steps of one row come to."""


def read_bytes_per_second(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how fast one thread copies memory for a while.

    The mean, not the best of it: a machine with a limit on its processors, or with other work, is
    as slow in every step, and stands still for tenths of a second at a time.
    """
    source, target = memoryview(bytes(_PROBE_BYTES)), memoryview(bytearray(_PROBE_BYTES))
    target[:] = source  # pages are made
    begun, copied, taken = clock(), 0, 0.0
    while taken < _PROBE_SECONDS:
        target[:] = source
        copied += _PROBE_BYTES
        taken = clock() - begun
    return copied / taken


def facts_of_machine(
    name: str, memory_bytes: int = 0, device: str = "cpu", *, threads: int = 0
) -> Facts:
    """Return what a node says of itself.

    Args:
        name: Of the node.
        memory_bytes: That the mesh may have; 0: most of what is available.
        device: What computes: ``cpu`` or ``cuda[:N]``.
        threads: That compute on a CPU; 0: as many as are good.

    Raises:
        DeviceError: There is no such GPU, or it cannot be used.
    """
    if runs_on_gpu(device):
        return _facts_of_gpu(name, memory_bytes, check_device(device))
    machine = probe()
    # Half of the cores reach what the memory gives; a limit is in what one thread was measured at.
    copying = max(1, min(machine.compute_threads, threads or machine.physical_cores) // 2)
    return Facts(
        name=name,
        memory_bytes=memory_bytes or int(machine.available_memory_bytes * _MEMORY_SHARE),
        bytes_per_second=read_bytes_per_second() * copying,
        cores=machine.physical_cores,
        version=__version__,
        device=machine.cpu_model,
    )


def _facts_of_gpu(name: str, memory_bytes: int, ordinal: int) -> Facts:
    """Return what a node says of its GPU: matrices are read at most of what its memory gives."""
    states = {state.info.ordinal: state for state in survey_cuda().gpus}
    state = states.get(ordinal)
    if state is None or state.problem is not None:
        why = "there is none" if state is None else state.problem
        raise DeviceError(f"GPU {ordinal} cannot be a node of a mesh: {why}")
    info = state.info
    return Facts(
        name=name,
        memory_bytes=memory_bytes or int(info.free_bytes * _MEMORY_SHARE),
        bytes_per_second=info.bandwidth_bytes_per_second * _GPU_READ_SHARE,
        cores=probe().physical_cores,
        version=__version__,
        device=f"{info.name} (cuda:{ordinal})",
    )
