"""One choice of one request while it lives: its tokens, its blocks, how far it is computed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zse.engine.request import NO_DRAFTS, CheckedDrafts
from zse.kernels.lm_head_sample.entries import AdjustmentHistory
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Sequence as TokenIds

    from zse.backends.types import SampledToken
    from zse.engine.drafting.token_states import TokenStates
    from zse.engine.reading import PromptReading, PromptReport
    from zse.engine.request import FinishReason, Request
    from zse.kv.table import BlockTable
    from zse.text.grammar.state import GrammarState


@dataclass(kw_only=True, eq=False)
class Sequence:
    """Mutable state of a choice. The scheduler moves it; the core appends its tokens.

    A preempted sequence keeps its tokens: only its blocks go, and it is computed again as a prompt
    that happens to include what it has generated.
    """

    request: Request
    index: int
    seed: int
    max_tokens: int
    """Resolved: never None."""
    end_token_ids: frozenset[int]
    """Tokens that end it."""
    rank: tuple[int, int]
    """Larger goes first; fixed at arrival (see ``intake.rank_of``)."""
    leader: Sequence | None = None
    """First choice of the same request, whose prompt blocks this one shares."""
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """Prompt and output in one list."""
    table: BlockTable | None = None
    """Its blocks; None while it waits."""
    slot: int = -1
    num_computed: int = 0
    """Tokens whose KV is written, or will be when the submitted steps are done."""
    num_charged: int = 0
    """Tokens at its start that are counted as its tenant's share."""
    num_pending: int = 0
    """Newest tokens that only the device knows yet: those that steps in flight are asked for."""
    num_void: int = 0
    """Chunks in flight whose answers are not waited for: the form left no choice about them."""
    grammar: GrammarState | None = None
    """How far it has come in the form that it is held to."""
    drafts: TokenIds[int] = ()
    """Guesses of the tokens after the known ones, for the next step to check. Whoever guesses sets
    them between steps: behind a pending token, to have the sequence wait for that."""
    checked_drafts: CheckedDrafts = NO_DRAFTS
    last_step: int = 0
    """Number of the last submitted step that uses its blocks."""
    cached_tokens: int | None = None
    """Prompt tokens reused when it first ran; None before."""
    finish_reason: FinishReason | None = None
    reading: PromptReading | None = None
    """What is told of its prompt, if anything is."""
    states: TokenStates | None = None
    """Of its newest tokens, where whoever guesses wants them."""
    _row: SamplingRow = field(init=False)

    def __post_init__(self) -> None:
        self._row = SamplingRow.of_answer(
            self.request.params,
            seed=self.seed,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=self.output_token_ids,
            wants_hidden=self.reading is not None and self.reading.wants_hidden,
            is_masked=self.grammar is not None,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far, a pending token included."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_remaining(self) -> int:
        """Tokens still to compute, drafts left out; 1 for a sequence in decode."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def num_left(self) -> int:
        """Tokens it may still be asked for."""
        return self.max_tokens - len(self.output_token_ids) - self.num_pending

    @property
    def most_tokens(self) -> int:
        """Tokens that it has at its end, at most."""
        return len(self.prompt_token_ids) + self.max_tokens

    @property
    def is_prompt_computed(self) -> bool:
        """Whether every block that other choices may share has been written."""
        return self.table is not None and self.num_computed >= len(self.prompt_token_ids)

    def answered(self, num_wanted: int, num_accepted: int) -> None:
        """Note the answer of the oldest step in flight: of the tokens asked for, some may not come.

        What was computed for these is of drafts that were wrong: it will be written over.
        """
        self.num_pending -= num_wanted
        if num_wanted > 1:
            accepted, rejected = self.checked_drafts
            self.checked_drafts = CheckedDrafts(
                accepted + num_accepted - 1, rejected + num_wanted - num_accepted
            )
        self.num_computed -= num_wanted - num_accepted

    def end_reading(self, first: SampledToken) -> PromptReport | None:
        """Return what was asked of the prompt, at its first token; None ever after."""
        reading, self.reading = self.reading, None
        return None if reading is None else reading.report(first)

    def append(self, token_id: int) -> None:
        self.output_token_ids.append(token_id)
        self.token_ids.append(token_id)
        if self.grammar is not None:
            self.grammar.advance(token_id)

    def void_pending(self) -> None:
        """Let nobody wait for the tokens that steps in flight are asked for: they are known."""
        self.num_void += self.num_pending > 0
        self.num_pending = 0

    def banned_in_form(self, num_drafts: int) -> TokenIds[int]:
        """Return the tokens that a mask bans after so many drafts, unless nothing else may come.

        They are the caller's; and an end that comes too early, or that the caller ignores, is put
        off while it can be.
        """
        assert self.grammar is not None
        is_early = len(self.output_token_ids) + num_drafts < self.request.params.min_tokens
        ends = self.grammar.grammar.end_token_ids
        banned = (*self.end_token_ids, *ends) if is_early else tuple(ends - self.end_token_ids)
        return (*self.request.params.banned_token_ids, *banned)

    def sampling_rows(self, num_wanted: int) -> list[SamplingRow]:
        """Return how its next tokens are to be chosen: the first, and one after each draft.

        The token lists are shared with the sequence, not copied: ``submit`` reads them at once.
        Drafts are told of where penalties look at them.
        """
        if num_wanted == 0:
            return []
        rows = [self._sampling_row(count) for count in range(num_wanted)]
        if num_wanted == 1 or not self._row.has_penalty:
            return rows
        output = self.output_token_ids
        return rows[:1] + [
            replace(
                row,
                output_token_ids=[*output, *self.drafts[:count]],
                history=AdjustmentHistory(),
            )
            for count, row in enumerate(rows[1:], start=1)
        ]

    def _sampling_row(self, num_drafts: int) -> SamplingRow:
        step = len(self.output_token_ids) + self.num_pending + num_drafts
        if self.grammar is not None:
            return self._row.at_step(step, ())
        params = self.request.params
        is_early = step < params.min_tokens
        ends = self.end_token_ids if is_early else ()
        return self._row.at_step(step, (*params.banned_token_ids, *ends))

    def reason_to_finish(self) -> FinishReason | None:
        """Return why the last token ends the sequence, or None when it goes on."""
        num_output = len(self.output_token_ids)
        if self.grammar is not None:
            if self.grammar.error:
                return "abort"
            if self.grammar.is_complete:
                return "stop"
        is_end = self.output_token_ids[-1] in self.end_token_ids
        if is_end and num_output > self.request.params.min_tokens:
            return "stop"
        return "length" if num_output >= self.max_tokens else None


def seed_of_choice(seed: int, index: int) -> int:
    """Return the seed of choice ``index``: the request's own for the first, unrelated for others.

    It is in [0, 2**63), whatever was asked for.
    """
    if index == 0:
        return seed % 2**63
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
