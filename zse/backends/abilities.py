"""Optional abilities of backends: callers check for them with ``isinstance``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.gpu.retained import Retained
    from zse.backends.handles import Handle
    from zse.backends.operations import Forward, Step
    from zse.backends.types import Answers, StepBatch
    from zse.format.spec import ZSEHeader
    from zse.kv.host_tier import HostBlocks
    from zse.kv.windows import WindowGroup
    from zse.models.spec import MedusaSpec, Pooling
    from zse.stream.peers.lending import Lendable
    from zse.stream.source import ByteSource


@runtime_checkable
class Pooler(Protocol):
    """A backend that computes encoders."""

    def pool(self, step: Step, residual: Handle, pooling: Pooling) -> Sequence[Sequence[float]]:
        """Return the vector of each chunk, which is a whole text: one of its rows, or their mean.

        Rows are normalized before. If the model has a classifier, its scores are returned instead.
        """


@runtime_checkable
class Guesser(Protocol):
    """A backend that makes other passes over a model's blocks than the model's own."""

    def guess(self, batch: StepBatch, forward: Forward) -> Answers:
        """Compute such a pass, of single rows, and wait for the tokens that it chooses.

        What it writes into blocks, steps write again before they read it.
        """


@runtime_checkable
class BindsHeads(Protocol):
    """A backend that computes heads which guess from states itself, on a device of its own."""

    def bind_heads(
        self, header: ZSEHeader, source: ByteSource, heads: Sequence[MedusaSpec]
    ) -> None:
        """Load heads of the model's file; ``guess`` takes their passes from now on."""

    def release_heads(self) -> None:
        """Give their memory back."""


@runtime_checkable
class Retainable(Protocol):
    """A backend that can be left to another model of the same shape."""

    def retain(self) -> Retained | None:
        """Have ``close`` keep the device's resources for that model; None if it cannot."""

    def release(self) -> None:
        """Undo ``retain``."""


@runtime_checkable
class Lends(Protocol):
    """A backend whose weights other processes of the host can copy."""

    def lendable(self) -> Lendable | None:
        """Return the memory they lie in, until the backend is closed; None where it cannot be."""


@runtime_checkable
class Settles(Protocol):
    """A backend that accepts steps while its weights are still being loaded."""

    def prepare_more(self) -> bool:
        """Do a small part of the preparations for a first request; return whether any was left."""

    def prepare_expected(self, ends: Forward, forward: Forward, rows: int) -> None:
        """Begin with what a first prompt of about so many tokens needs, which comes at once.

        Args:
            ends: The pass of the model without its layers.
            forward: The pass.
            rows: An estimate: it decides what takes time, and nothing else.
        """

    def settle(self) -> None:
        """Wait until all weights are loaded; raises what prevented that."""

    def stop_settling(self) -> None:
        """Cancel the load; threads that wait for weights get ``LoadCancelledError``."""


@runtime_checkable
class FillsDevice(Protocol):
    """A backend on which some numbers of rows are computed better than others."""

    def filled_rows(self, most_rows: int) -> int:
        """Return how many rows a step with prompts best has, of so many that it may have."""


@runtime_checkable
class PreparesIdle(Protocol):
    """A backend that uses its device's idle time to make steps ready that may come."""

    def prepare_idle(self, forward: Forward) -> bool:
        """Prepare one of them; whether there was one to prepare."""


@runtime_checkable
class TimesSteps(Protocol):
    """A backend whose device can tell when it began and ended a step."""

    def time_steps(self) -> None:
        """Time steps from now on: see ``zse.engine.step_trace.TimedByDevice``."""


@runtime_checkable
class Shrinkable(Protocol):
    """A backend whose pool can be made smaller."""

    num_blocks: int
    windows: Sequence[WindowGroup]

    def shrink(self, num_blocks: int, *, least_blocks: int) -> None:
        """Make the KV pool anew with so many blocks, or as many as there is memory for.

        The content of all blocks is lost.
        """


@runtime_checkable
class KeepsInHost(Protocol):
    """A backend whose KV blocks lie in device memory and can be moved to host memory."""

    def host_blocks(self, length_bytes: int) -> HostBlocks:
        """Return host memory for KV blocks; it is freed with the backend."""
