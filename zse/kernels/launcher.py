"""What runs a variant.

The CUDA backend has one over a kernel pack, the tests have one over Triton's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.variant import Variant

Grid: TypeAlias = tuple[int, int, int]
Value: TypeAlias = int | float


@record
class DeviceFacts:
    """What the choice of a variant may depend on."""

    name: str
    """As the driver says it, for example ``NVIDIA H200``."""
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth_bytes_per_second: float = 0.0
    """Of device memory; 0 when unknown."""


class Rehearsal:
    """A launcher that launches nothing and remembers which kernels it was asked for."""

    def __init__(self, device: DeviceFacts) -> None:
        self.device = device
        self.variants: list[Variant] = []

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:  # noqa: ARG002
        """Remember the kernel."""
        self.variants.append(variant)

    def prepare(self, *variants: Variant) -> None:
        """Remember the kernels."""
        self.variants.extend(variants)


class Launcher(Protocol):
    """Puts kernels into one stream, in order."""

    @property
    def device(self) -> DeviceFacts:
        """The device that the stream is on."""

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        """Enqueue one kernel.

        Args:
            variant: Which compiled form.
            grid: Number of programs along x, y, z.
            arguments: One value for each of ``variant.arguments``: device addresses and numbers.

        Raises:
            KernelPackError: The pack holds no such variant.
            DeviceError: The driver refused the launch.
        """

    def prepare(self, *variants: Variant) -> None:
        """Load the code of kernels before their first launch.

        Raises:
            KernelPackError: The pack holds no such variant.
            DeviceError: The driver refused the code.
        """
