"""What this machine can give a mesh: its memory, and how fast it reads and copies."""

from __future__ import annotations

import time

from zse import __version__
from zse.device.probe import probe
from zse.mesh.messages import Facts

_PROBE_BYTES = 32 << 20
_ROUNDS = 3
_MEMORY_SHARE = 0.8
"""Of what is available: the rest is for the system and what else runs."""


def read_bytes_per_second() -> float:
    """Return how fast one thread copies memory, the best of a few tries: a lower bound."""
    source, target = memoryview(bytes(_PROBE_BYTES)), memoryview(bytearray(_PROBE_BYTES))
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - begun)
    return _PROBE_BYTES / best


def facts_of_machine(name: str, memory_bytes: int = 0) -> Facts:
    """Return what a node says of itself.

    Args:
        name: Of the node.
        memory_bytes: That the mesh may have; 0: most of what is available.
    """
    machine = probe()
    return Facts(
        name=name,
        memory_bytes=memory_bytes or int(machine.available_memory_bytes * _MEMORY_SHARE),
        bytes_per_second=read_bytes_per_second() * max(1, machine.physical_cores // 2),
        cores=machine.physical_cores,
        version=__version__,
        device=machine.cpu_model,
    )
