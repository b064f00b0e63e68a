"""What the engine needs of a model runner. The tests put a scripted one in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.operations import PendingStep
    from zse.backends.types import LogitRows, StepBatch


class Runner(Protocol):
    """A model with its KV pool on one device."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def max_position(self) -> int:
        """Longest sequence the model accepts, in tokens."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output head; token ids are below it."""

    @property
    def looks_ahead(self) -> bool:
        """Whether a step can be submitted before the one before it has been waited for."""

    def submit(self, batch: StepBatch) -> PendingStep:
        """Hand over one step: write the chunks' KV and sample where a row asks for it."""

    def logits(self, token_ids: Sequence[int]) -> LogitRows:
        """Return float32 logits of one sequence, a row a token, computed outside the KV pool."""

    def close(self) -> None:
        """Give the device's memory back."""
