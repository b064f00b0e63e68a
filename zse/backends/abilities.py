"""What some backends can do besides: who needs it asks whether a backend has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.gpu.retained import Retained
    from zse.backends.handles import Handle
    from zse.backends.operations import Step
    from zse.kv.host_tier import HostBlocks
    from zse.kv.windows import WindowGroup
    from zse.models.spec import Pooling
    from zse.stream.peers.lending import Lendable


@runtime_checkable
class Pooler(Protocol):
    """What a backend of encoders has besides."""

    def pool(self, step: Step, residual: Handle, pooling: Pooling) -> Sequence[Sequence[float]]:
        """Return the vector of each chunk, which is a whole text: the mean of its rows, or one.

        Rows are normed before. Where a model has a classifier, its scores stand for the vector.
        """


@runtime_checkable
class Retainable(Protocol):
    """A backend that can be left to another model of the same shape."""

    def retain(self) -> Retained | None:
        """Have ``close`` leave everything to it; None where that cannot be."""

    def release(self) -> None:
        """Undo ``retain``."""


@runtime_checkable
class Lends(Protocol):
    """A backend whose weights other processes of the host can copy."""

    def lendable(self) -> Lendable | None:
        """Return the memory they lie in, until the backend is closed; None where it cannot be."""


@runtime_checkable
class Settles(Protocol):
    """A backend that can be asked while its weights are still on their way."""

    def prepare_more(self) -> bool:
        """Prepare a little of a first request, unless one has come; whether there was anything."""

    def settle(self) -> None:
        """Wait until all weights are there; raises what kept them from it."""

    def stop_settling(self) -> None:
        """Let no more weights come; who waits for them gets ``LoadCancelledError``."""


@runtime_checkable
class TimesSteps(Protocol):
    """A backend whose device says when it worked at a step."""

    def time_steps(self) -> None:
        """Time steps from now on: see ``zse.engine.step_trace.TimedByDevice``."""


@runtime_checkable
class Shrinkable(Protocol):
    """A backend whose pool can be made smaller."""

    num_blocks: int
    windows: Sequence[WindowGroup]

    def shrink(self, num_blocks: int, *, least_blocks: int) -> None:
        """Have so many blocks from now on, or as many as there is memory for.

        What they hold is lost.
        """


@runtime_checkable
class KeepsInHost(Protocol):
    """A backend whose blocks lie elsewhere than in host memory, and can go there."""

    def host_blocks(self, length_bytes: int) -> HostBlocks:
        """Return host memory for blocks of the pool; it goes with the backend."""
