"""GPUs that people have or rent, by memory: which one a model needs."""

from __future__ import annotations

from zse.records import record
from zse.units import MIB

DRIVER_BYTES = 600 * MIB
"""What the driver takes of a GPU for itself, with room to spare."""


@record
class KnownGpu:
    """A GPU that the kernels are compiled for."""

    name: str
    memory_mib: int
    """As its driver reports it."""

    @property
    def usable_bytes(self) -> int:
        """What is left for models."""
        return self.memory_mib * MIB - DRIVER_BYTES

    def holds(self, needed_bytes: int) -> bool:
        return needed_bytes <= self.usable_bytes


KNOWN_GPUS = (
    KnownGpu(name="RTX 4060", memory_mib=8188),
    KnownGpu(name="RTX 3060 12 GB", memory_mib=12288),
    KnownGpu(name="RTX A4000", memory_mib=16376),
    KnownGpu(name="L4", memory_mib=23034),
    KnownGpu(name="RTX 4090", memory_mib=24564),
    KnownGpu(name="RTX 5090", memory_mib=32607),
    KnownGpu(name="A100 40 GB", memory_mib=40960),
    KnownGpu(name="L40S", memory_mib=46068),
    KnownGpu(name="H100", memory_mib=81559),
    KnownGpu(name="A100 80 GB", memory_mib=81920),
    KnownGpu(name="H200", memory_mib=143771),
    KnownGpu(name="B200", memory_mib=183359),
)
"""The smallest first."""


def smallest_gpu(needed_bytes: int) -> KnownGpu | None:
    """Return the smallest GPU that holds so much; None where not even the largest does."""
    return next((gpu for gpu in KNOWN_GPUS if gpu.holds(needed_bytes)), None)
