"""What is known of a GPU, whoever made it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from zse.records import record

LinkKind: TypeAlias = Literal["nvlink", "pcie", "none"]


@record
class DeviceFacts:
    """What the choice of kernels may depend on."""

    name: str
    """As the driver says it, for example ``NVIDIA H200``."""
    target: str
    """Architecture that code is compiled for, for example ``sm_90``."""
    warp_threads: int
    """Threads that take every step together."""
    multiprocessors: int
    shared_memory_optin_bytes: int
    """Shared memory that a block may ask for."""
    l2_bytes: int
    bandwidth_bytes_per_second: float
    """Of device memory, from its clock and its width; what kernels reach is 5 to 10% less. 0 when
    unknown."""


@record
class GpuInfo(DeviceFacts):
    """One GPU as it was when it was looked at."""

    total_bytes: int
    free_bytes: int
    """0 where no context could be made."""
    driver_version: int
    """What the driver speaks: 12040 is CUDA 12.4."""
    ordinal: int
    """Its place among the GPUs that this process sees."""
    uuid: str
    """As the driver's tools show it, for example ``GPU-1b5c...``."""


@record
class GpuLink:
    """How one GPU of a host reaches another one's memory."""

    ordinal: int
    """Places among the GPUs that this process sees: of the GPU that reads and writes,"""
    other: int
    """and of the one whose memory it is."""
    kind: LinkKind
    """``none``: its kernels cannot."""
    performance_rank: int
    """As the driver ranks its links; 0 is the best."""
