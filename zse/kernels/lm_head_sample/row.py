"""How the next token of a sequence is chosen, and the random number of its draw.

The number is a hash of (seed, step), so an answer with a seed repeats anywhere. It is computed on
the CPU and passed to the kernels, which makes it the same for every backend.
"""

from __future__ import annotations

import hashlib
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

from zse.kernels.layout import GREEDY_BELOW
from zse.kernels.lm_head_sample.entries import AdjustmentHistory
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_SINGLE_BITS = 24
"""Bits that a float32 holds exactly."""


@record
class Sampling:
    """What is the same for all tokens of an answer."""

    temperature: float = 1.0
    """0 is greedy: the likeliest token, the lowest id on a tie."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the likeliest tokens that together have this probability; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Makes tokens of the prompt and the answer less likely when above 1."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that the answer holds."""
    frequency_penalty: float = 0.0
    """Taken once for each time that the answer holds the token."""
    logprobs: int | None = None
    """Likeliest alternatives to report with each token; None reports no log-probability at all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, each in [-100, 100]."""


@record
class SamplingRow(Sampling):
    """How the next token of one sequence is chosen.

    The answer depends on this row and on the sequence alone, never on the rest of the batch.
    """

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
    banned_token_ids: Collection[int] = ()
    known_token_id: int | None = None
    """The token that follows, where it is known: it is chosen, to tell its log-probability."""
    wants_hidden: bool = False
    """Report the final hidden state that the token is chosen from, too."""
    is_masked: bool = False
    """Whether a mask of the batch says which tokens may come; it has the bans in it."""

    @classmethod
    def of_answer(cls, sampling: Sampling, **own: Any) -> SamplingRow:
        """Return a row of an answer that is sampled so; ``own`` are the fields that it adds."""
        return cls(**{name: getattr(sampling, name) for name in _SHARED}, **own)

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
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalty(self) -> bool:
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
            or self.known_token_id is not None
        )

    def is_truncated(self, vocab: int) -> bool:
        """Whether some of so many tokens are cut before a draw."""
        return 0 < self.top_k < vocab or self.top_p < 1.0 or self.min_p > 0.0


_SHARED = tuple(each.name for each in fields(Sampling))


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that depends on the seed and the step alone."""
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def uniform_single(seed: int, step: int) -> float:
    """Return ``uniform`` rounded down to what a float32 holds; never 1.0, as rounding up may be."""
    return int(uniform(seed, step) * 2**_SINGLE_BITS) * 2.0**-_SINGLE_BITS
