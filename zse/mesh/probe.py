"""What this machine can give a mesh: its memory, and how fast it reads and copies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse import __version__
from zse.device.open import check_device, runs_on_gpu
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.errors import DeviceError
from zse.mesh.devices import NodeDevices
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
_GPU_SUMS_SECONDS, _CPU_SUMS_SECONDS = 1e-5, 1e-4
"""Of a layer that several devices share: it is added up twice, over NVLink in 4.5 us each."""


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


def count_gpus() -> int:
    """Return how many GPUs this host has, whatever state they are in."""
    return len(survey_cuda().gpus)


def facts_of_machine(
    name: str, memory_bytes: int = 0, devices: NodeDevices | None = None, *, threads: int = 0
) -> Facts:
    """Return what a node says of itself.

    Args:
        name: Of the node.
        memory_bytes: That the mesh may have, of each GPU; 0: most of what is available.
        devices: What computes; None: the processor.
        threads: That compute on a CPU; 0: as many as are good.

    Raises:
        DeviceError: There is no such GPU, or it cannot be used.
    """
    devices = devices or NodeDevices()
    if runs_on_gpu(devices.names[0]):
        return _facts_of_gpus(name, memory_bytes, devices)
    machine = probe()
    # Half of the cores reach what the memory gives; a limit is in what one thread was measured at.
    copying = max(1, min(machine.compute_threads, threads or machine.physical_cores) // 2)
    ranks = len(devices.names)  # which share what the machine has
    memory_bytes = memory_bytes or int(machine.available_memory_bytes * _MEMORY_SHARE)
    return Facts(
        name=name,
        memory_bytes=memory_bytes // ranks,
        bytes_per_second=read_bytes_per_second() * copying / ranks,
        cores=machine.physical_cores,
        version=__version__,
        device=machine.cpu_model,
        shares=devices.shares,
        sums_seconds=_CPU_SUMS_SECONDS if ranks > 1 else 0.0,
    )


def _facts_of_gpus(name: str, memory_bytes: int, devices: NodeDevices) -> Facts:
    """Return what a node says of its GPUs: of each what the least of them has.

    Matrices are read at most of what memory gives; one that is named twice serves two in turns.
    """
    survey = survey_cuda()
    states = {state.info.ordinal: state for state in survey.gpus}
    ordinals = [check_device(device) for device in devices.names]
    free, rates = [], []
    for ordinal in ordinals:
        state = states.get(ordinal)
        if state is None or state.problem is not None:
            why = (survey.problem or "there is none") if state is None else state.problem
            raise DeviceError(f"GPU {ordinal} cannot be a node of a mesh: {why}")
        turns = ordinals.count(ordinal)
        free.append(state.info.free_bytes // turns)
        rates.append(state.info.bandwidth_bytes_per_second / turns)
    info = states[ordinals[0]].info
    return Facts(
        name=name,
        memory_bytes=memory_bytes or int(min(free) * _MEMORY_SHARE),
        bytes_per_second=min(rates) * _GPU_READ_SHARE,
        cores=probe().physical_cores,
        version=__version__,
        device=f"{info.name} ({', '.join(devices.names)})",
        shares=devices.shares,
        sums_seconds=_GPU_SUMS_SECONDS,
    )
