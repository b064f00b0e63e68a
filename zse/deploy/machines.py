"""What platforms rent, by memory: GPU types and CPU plans from tables in ``data``.

Prices are list prices on the day that the table names; they are there to compare, not to bill.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from zse.deploy.errors import DeployRule
from zse.deploy.tables import read_table
from zse.device.known_gpus import DRIVER_BYTES
from zse.errors import DeviceError, UsageError
from zse.records import record
from zse.units import MIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.memory import MemoryEstimate

_RUNTIME_BYTES = 400 * MIB
"""What the CPU backend's libraries take."""


@record
class Machine:
    """One GPU type or CPU plan of a platform."""

    name: str
    """As the platform's API writes it."""
    hardware: str
    """In words."""
    type_id: str = ""
    """A second name, where the platform has two."""
    memory_mib: int
    """Of the GPU, as its driver reports it; of the machine for a CPU plan."""
    architectures: Sequence[str] = ()
    """Kernel pack targets that may be met; empty for a CPU plan."""
    usd_per_hour: float | None = None
    cpu: float = 0
    """Processors that come with it, where the platform ties them."""
    ram_gib: int = 0

    @property
    def is_gpu(self) -> bool:
        return bool(self.architectures)

    def holds(self, need: MemoryEstimate) -> bool:
        taken_bytes = DRIVER_BYTES if self.is_gpu else _RUNTIME_BYTES
        return need.total_bytes <= self.memory_mib * MIB - taken_bytes


@record
class Catalog:
    """What one platform rents."""

    platform: str
    source: str
    prices_of: str
    """The day that the prices were read."""
    machines: tuple[Machine, ...]

    def named(self, name: str) -> Machine:
        """Return a machine by the platform's name.

        Raises:
            UsageError: The table has no such machine.
        """
        for machine in self.machines:
            if machine.name.lower() == name.lower():
                return machine
        known = ", ".join(machine.name for machine in self.machines)
        raise UsageError(f"{self.platform} has no {name!r}", hint=f"It has {known}.")

    def smallest(self, need: MemoryEstimate | None, *, gpu: bool = True) -> Machine:
        """Return the cheapest machine that holds a model; of equal ones the smallest.

        Args:
            need: What the model takes; None when it is not known.
            gpu: Look among GPU types, or among CPU plans.

        Raises:
            UsageError: Nothing is known of the model.
            DeviceError: Even the largest is too small.
        """
        kind = [machine for machine in self.machines if machine.is_gpu == gpu]
        if need is None:
            known = ", ".join(machine.name for machine in kind)
            raise UsageError(
                "the model's size is not known, so no machine can be chosen",
                hint=f"Give MODEL as a local .zse file, or --memory-gib, or --gpu, one of {known}.",
            )
        fitting = [machine for machine in kind if machine.holds(need)]
        if not fitting:
            largest = max(kind, key=lambda machine: machine.memory_mib)
            raise DeviceError(
                f"the model needs {memory_text(need.total_bytes)}, but the largest machine of "
                f"{self.platform}, {largest.name}, has {memory_text(largest.memory_mib * MIB)}",
                hint="Convert the model with a smaller scheme, or ask for a shorter context.",
                rule=DeployRule.NO_FITTING_GPU,
            )
        return min(fitting, key=lambda machine: (_price(machine), machine.memory_mib))


@cache
def load_catalog(platform: str) -> Catalog:
    table = read_table(f"data/{platform}")
    machines = tuple(Machine(**row) for row in table["machines"])
    return Catalog(**{**table, "platform": platform, "machines": machines})


def _price(machine: Machine) -> float:
    return machine.usd_per_hour if machine.usd_per_hour is not None else float("inf")
