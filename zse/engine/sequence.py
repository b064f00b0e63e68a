"""One choice of one request while it lives: its tokens, its blocks, how far it is computed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from zse.engine.request import FinishReason, Request
    from zse.kv.cache import BlockTable


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
    """Larger goes first; fixed at arrival (see ``scheduler.rank_of``)."""
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
    num_pending: int = 0
    """Newest tokens that only the device knows yet: one for each step in flight that samples."""
    last_step: int = 0
    """Number of the last submitted step that uses its blocks."""
    cached_tokens: int | None = None
    """Prompt tokens reused when it first ran; None before."""
    finish_reason: FinishReason | None = None
    _row: SamplingRow = field(init=False)

    def __post_init__(self) -> None:
        params = self.request.params
        self._row = SamplingRow(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=self.seed,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=self.output_token_ids,
            logprobs=params.logprobs,
            logit_bias=params.logit_bias,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far, a pending token included."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_remaining(self) -> int:
        """Tokens still to compute; 1 for a sequence in decode."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def is_last_pending(self) -> bool:
        """Whether the pending token, whatever it is, ends the sequence by its length."""
        return len(self.output_token_ids) + self.num_pending >= self.max_tokens

    @property
    def is_prompt_computed(self) -> bool:
        """Whether every block that other choices may share has been written."""
        return self.table is not None and self.num_computed >= len(self.prompt_token_ids)

    def append(self, token_id: int) -> None:
        """Add a generated token: the oldest pending one, now known."""
        self.num_pending -= 1
        self.output_token_ids.append(token_id)
        self.token_ids.append(token_id)

    def sampling_row(self) -> SamplingRow:
        """Return how its next token is to be chosen.

        The token lists are shared with the sequence, not copied: ``submit`` reads them at once.
        """
        num_output = len(self.output_token_ids) + self.num_pending
        too_early = num_output < self.request.params.min_tokens
        return self._row.at_step(num_output, self.end_token_ids if too_early else ())

    def reason_to_finish(self) -> FinishReason | None:
        """Return why the last token ends the sequence, or None when it goes on."""
        num_output = len(self.output_token_ids)
        is_end = self.output_token_ids[-1] in self.end_token_ids
        if is_end and num_output > self.request.params.min_tokens:
            return "stop"
        return "length" if num_output >= self.max_tokens else None


def seed_of_choice(seed: int, index: int) -> int:
    """Return the seed of choice ``index``: the request's own for the first, unrelated for others.

    Args:
        seed: Any integer.
        index: Position among the choices.

    Returns:
        A seed in [0, 2**63).
    """
    if index == 0:
        return seed % 2**63
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
