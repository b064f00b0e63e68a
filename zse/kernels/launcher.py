"""What runs a variant.

The GPU backend has one over a kernel pack, the tests have one over Triton's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.variant import Variant

Value: TypeAlias = int | float


class Launcher(Protocol):
    """Puts kernels into one stream, in order."""

    @property
    def device(self) -> DeviceFacts: ...

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        """Enqueue one kernel.

        Args:
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
