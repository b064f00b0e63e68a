"""States of fixed size that a sequence has beside its KV blocks: how many, and how large.

Every running sequence has one, found by its slot. One more is for rows that fill up a captured
step. Behind them are checkpoints: states as they were at the end of a prompt's full blocks, which
a later sequence with the same prefix starts from. Without one its cached blocks are of no use.

A state cannot go back behind a draft that was wrong. So each draft leaves its state in a slot of
its own, behind all others, and a sequence goes on with that of the last draft that stood.
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
MOST_DRAFT_STATES = 16
"""Drafts that a step checks at most where each leaves a state: for all its sequences together."""


@record
class StateLayout:
    """The states of a model's linear attentions."""

    shapes: Mapping[int, DeltaShape]
    """Of each layer that has any."""
    num_sequences: int
    num_checkpoints: int
    num_drafts: int = 0
    """Drafts of a step that have a state of their own; 0: none can be checked."""

    @property
    def num_slots(self) -> int:
        """States that there is memory for; none where no layer has any."""
        if not self.shapes:
            return 0
        return self.num_sequences + 1 + self.num_checkpoints + self.num_drafts

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state: matrices, and what convolutions look back at."""
        return sum(4 * (s.state_numbers + s.ring_numbers) for s in self.shapes.values())

    @property
    def length_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    def slot_of(self, checkpoint: int) -> int:
        return self.num_sequences + 1 + checkpoint


class StateSlots:
    """Which slot of memory has the state of each sequence: checked drafts change that.

    Args:
        layout: The states that there is memory for.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._has_states = bool(layout.shapes)
        first_draft = layout.num_slots - layout.num_drafts
        self._own = list(range(first_draft))
        self._free = list(range(first_draft, layout.num_slots))

    def of(self, slot: int) -> int:
        """Return where the state of a sequence, or a checkpoint, lies."""
        return self._own[slot] if self._has_states else 0

    def lend(self, slot: int, num_drafts: int) -> list[int]:
        """Return where the states of a sequence and of each of its drafts are to lie."""
        if not self._has_states:
            return [0] * (1 + num_drafts)
        return [self._own[slot], *(self._free.pop() for _ in range(num_drafts))]

    def settle(self, slot: int, lent: Sequence[int], num_accepted: int) -> None:
        """Let a sequence go on with the state behind so many drafts; the others are free."""
        if self._has_states:
            self._own[slot] = lent[num_accepted]
            self._free += [*lent[:num_accepted], *lent[num_accepted + 1 :]]


def states_of(spec: ModelSpec, options: LoadOptions, *, num_drafts: int = 0) -> StateLayout:
    """Return the states that a model needs, with those of so many drafts of a step."""
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
        num_drafts=num_drafts if shapes else 0,
    )


def states_on_gpu(spec: ModelSpec, options: LoadOptions) -> StateLayout:
    """Return the states that a model needs on a GPU: those of drafts, too, if any are asked for.

    A GPU's pool is taken whole, and a state can have a hundred megabytes. Of several ranks or
    stages none knows by itself which drafts stood.
    """
    asked, ranks = options.speculation, options.ranks
    is_alone = ranks.tensor_parallel == ranks.pipeline_parallel == 1
    is_asked = asked.speculate not in ("off", "auto")
    is_asked = is_asked or (asked.speculate == "auto" and bool(asked.draft_model))
    return states_of(spec, options, num_drafts=MOST_DRAFT_STATES * (is_alone and is_asked))


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
        EngineError: Chunks check more drafts than have states, or name a checkpoint or a slot
            that is not there.
    """
    num_drafts = sum(len(chunk.token_ids) - 1 for chunk in chunks if chunk.kind == "verify")
    if layout.shapes and num_drafts > layout.num_drafts:
        raise EngineError(
            f"{num_drafts} drafts were to be checked by a model with linear attention, which has "
            f"states for {layout.num_drafts}: a state cannot go back behind a draft that was wrong"
        )
    for chunk in chunks:
        for checkpoint in (chunk.restored_from, chunk.saved_to):
            if checkpoint is not None and not 0 <= checkpoint < layout.num_checkpoints:
                raise EngineError(
                    f"checkpoint {checkpoint} is outside 0 to {layout.num_checkpoints - 1}"
                )
        if layout.shapes and not 0 <= chunk.sequence_slot < layout.num_sequences:
            raise EngineError(
                f"slot {chunk.sequence_slot} is outside 0 to {layout.num_sequences - 1}"
            )
