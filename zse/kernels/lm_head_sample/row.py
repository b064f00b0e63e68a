"""How the next token of a sequence is chosen, and the random number of its draw.

The number is a hash of (seed, step), so an answer with a seed repeats anywhere. It is computed on
the CPU and passed to the kernels, which makes it the same for every backend.
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import TYPE_CHECKING

from zse.kernels.layout import GREEDY_BELOW
from zse.kernels.lm_head_sample.entries import AdjustmentHistory
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_SINGLE_BITS = 24
"""Bits that a float32 holds exactly."""


@record
class SamplingRow:
    """How the next token of one sequence is chosen.

    The answer depends on this row and on the sequence alone, never on the rest of the batch.
    """

    temperature: float = 1.0
    """0 means greedy: the most likely token, the lowest id on a tie."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    step: int = 0
    """Number of tokens generated before this one; with ``seed`` it fixes the random draw."""
    prompt_token_ids: Sequence[int] = ()
    """With ``output_token_ids``, what penalties look at. Read both before ``submit`` returns: the
    lists belong to the sequence, which goes on. A pending token is in neither: the device counts
    it.
    """
    output_token_ids: Sequence[int] = ()
    history: AdjustmentHistory = field(default_factory=AdjustmentHistory, compare=False, repr=False)
    """Kept from step to step, so that a long text is not counted again for each token."""
    logprobs: int | None = None
    """Number of likeliest alternatives to report; None reports no log-probabilities at all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_token_ids: Collection[int] = ()

    def at_step(self, step: int, banned_token_ids: Collection[int]) -> SamplingRow:
        """Return the row of a later token of the same sequence; everything else stays."""
        row = object.__new__(SamplingRow)  # a fifth of what ``dataclasses.replace`` takes
        values = row.__dict__
        values.update(self.__dict__)
        values["step"] = step
        values["banned_token_ids"] = banned_token_ids
        return row

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalty(self) -> bool:
        """Whether the row's tokens are counted."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def is_adjusted(self) -> bool:
        """Whether penalties, biases or bans change the row's logits."""
        return (
            self.repetition_penalty != 1.0
            or (self.has_penalty and (self.step > 0 or len(self.output_token_ids) > 0))
            or len(self.logit_bias) > 0
            or len(self.banned_token_ids) > 0
        )

    def is_truncated(self, vocab: int) -> bool:
        """Whether some of so many tokens are cut before a draw."""
        return 0 < self.top_k < vocab or self.top_p < 1.0 or self.min_p > 0.0


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that depends on the seed and the step alone."""
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def uniform_single(seed: int, step: int) -> float:
    """Return ``uniform`` rounded down to what a float32 holds; never 1.0, as rounding up may be."""
    return int(uniform(seed, step) * 2**_SINGLE_BITS) * 2.0**-_SINGLE_BITS
