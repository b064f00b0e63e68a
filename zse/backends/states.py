"""States of fixed size that a sequence has beside its KV blocks: how many, and how large.

Every running sequence has one, found by its slot. One more is for rows that fill up a captured
step. Behind them are checkpoints: states as they were at the end of a prompt's full blocks, which
a later sequence with the same prefix starts from. Without one its cached blocks are of no use.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.errors import EngineError
from zse.kernels.delta.shape import DeltaShape
from zse.option import with_values
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.backends.types import SequenceChunk
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.backends")
MOST_CHECKPOINTS = 16
"""A state has the size of thousands of tokens of KV, and a handful of prefixes are in use."""


@record
class StateLayout:
    """The states of a model's linear attentions."""

    shapes: Mapping[int, DeltaShape]
    """Of each layer that has any."""
    num_sequences: int
    num_checkpoints: int

    @property
    def num_slots(self) -> int:
        """States that there is memory for; none where no layer has any."""
        return self.num_sequences + 1 + self.num_checkpoints if self.shapes else 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state: matrices, and what convolutions look back at."""
        return sum(4 * (s.state_numbers + s.ring_numbers) for s in self.shapes.values())

    @property
    def length_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    def slot_of(self, checkpoint: int) -> int:
        return self.num_sequences + 1 + checkpoint


def states_of(spec: ModelSpec, options: LoadOptions) -> StateLayout:
    """Return the states that a model needs."""
    shapes = {
        layer.index: DeltaShape.of(layer.mixer)
        for layer in spec.layers
        if not is_attention(layer.mixer)
    }
    most = options.batch.max_sequences
    keeps = bool(shapes) and options.cache.prefix_cache
    return StateLayout(
        shapes=shapes,
        num_sequences=most,
        num_checkpoints=min(most, MOST_CHECKPOINTS) if keeps else 0,
    )


def with_states_that_fit(
    spec: ModelSpec, options: LoadOptions, available_bytes: int
) -> LoadOptions:
    """Return options for fewer sequences at once where states would take over half of the memory.

    ``available_bytes`` is what the weights leave. Each halving gives up a power of two, as steps
    are captured; one sequence is left in any case.
    """
    fitting, asked = options, options.batch.max_sequences
    while (most := fitting.batch.max_sequences) > 1:
        if 2 * states_of(spec, fitting).length_bytes <= available_bytes:
            break
        fitting = with_values(fitting, {"max_sequences": most // 2})
    if most < asked:
        _LOG.warning(
            "%d sequences run at once, not %d: each keeps a state of %.0f MB, and all states "
            "together get at most half of the memory that the weights leave",
            most,
            asked,
            states_of(spec, options).slot_bytes / 1e6,
        )
    return fitting


def check_states(chunks: Sequence[SequenceChunk], layout: StateLayout) -> None:
    """Refuse chunks that states cannot follow.

    Raises:
        EngineError: A chunk checks drafts, or names a checkpoint or a slot that is not there.
    """
    for chunk in chunks:
        if layout.shapes and chunk.kind == "verify":
            raise EngineError(
                "drafts were to be checked by a model with linear attention, whose state cannot "
                "go back behind a draft that was wrong"
            )
        for checkpoint in (chunk.restored_from, chunk.saved_to):
            if checkpoint is not None and not 0 <= checkpoint < layout.num_checkpoints:
                raise EngineError(
                    f"checkpoint {checkpoint} is outside 0 to {layout.num_checkpoints - 1}"
                )
        if layout.shapes and not 0 <= chunk.sequence_slot < layout.num_sequences:
            raise EngineError(
                f"slot {chunk.sequence_slot} is outside 0 to {layout.num_sequences - 1}"
            )
