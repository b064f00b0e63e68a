"""What this machine can give a mesh: its memory, and how fast it reads and copies."""

from __future__ import annotations

import time

from zse import __version__
from zse.device.open import check_device, runs_on_gpu
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.errors import DeviceError
from zse.mesh.messages import Facts

_PROBE_BYTES = 32 << 20
_ROUNDS = 3
_MEMORY_SHARE = 0.8
"""Of what is available: the rest is for the system and what else runs."""
_GPU_READ_SHARE = 0.6
"""Of a GPU's bandwidth: what decode steps of one row come to."""


def read_bytes_per_second() -> float:
    """Return how fast one thread copies memory, the best of a few tries: a lower bound."""
    source, target = memoryview(bytes(_PROBE_BYTES)), memoryview(bytearray(_PROBE_BYTES))
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - begun)
    return _PROBE_BYTES / best


def facts_of_machine(name: str, memory_bytes: int = 0, device: str = "cpu") -> Facts:
    """Return what a node says of itself.

    Args:
        name: Of the node.
        memory_bytes: That the mesh may have; 0: most of what is available.
        device: What computes: ``cpu`` or ``cuda[:N]``.

    Raises:
        DeviceError: There is no such GPU, or it cannot be used.
    """
    if runs_on_gpu(device):
        return _facts_of_gpu(name, memory_bytes, check_device(device))
    machine = probe()
    return Facts(
        name=name,
        memory_bytes=memory_bytes or int(machine.available_memory_bytes * _MEMORY_SHARE),
        bytes_per_second=read_bytes_per_second() * max(1, machine.physical_cores // 2),
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
