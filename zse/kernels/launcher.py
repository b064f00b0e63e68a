"""What runs a variant.

The GPU backend has one over a kernel pack, the tests have one over Triton's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class Launch(NamedTuple):
    """What a launcher was asked for."""

    variant: Variant
    grid: Grid
    arguments: tuple[Value, ...]


class Repeated(Protocol):
    """Kernels that are launched in rounds, of whose arguments some differ from round to round."""

    def launch(self, calls: Sequence[Launch], rounds: range) -> None:
        """Enqueue rounds, by number, as ``Launcher.launch`` would each of their kernels.

        Args:
            calls: Of any round, whose other arguments have been checked.
        """


@runtime_checkable
class Repeating(Protocol):
    """A launcher that repeats launches with less work for each."""

    def repeated(
        self,
        variants: Sequence[Variant],
        places: Sequence[tuple[int, int]],
        rounds: Sequence[Sequence[Value]],
    ) -> Repeated:
        """Return what launches kernels, one after the other, in rounds.

        Args:
            variants: Of a round.
            places: Of the arguments that change: which kernel's, and which of its arguments.
            rounds: The values of each round, one for each place.

        Raises:
            KernelPackError: The pack holds no such variant.
            DeviceError: A value breaks a variant's promise.
        """
