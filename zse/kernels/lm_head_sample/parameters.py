"""What a row's caller says of how its next token is chosen.

``zse.backends.types.SamplingRow`` is one; kernels stand below the backends and know its shape only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zse.kernels.lm_head_sample.entries import AdjustmentHistory


class SamplingParameters(Protocol):
    """Parameters of one sequence; ``zse.backends.types`` says more of each."""

    @property
    def temperature(self) -> float:
        """Below ``GREEDY_BELOW``: greedy."""

    @property
    def top_k(self) -> int:
        """0 is none."""

    @property
    def top_p(self) -> float:
        """1 is none."""

    @property
    def min_p(self) -> float:
        """Relative to the largest probability; 0 is none."""

    @property
    def repetition_penalty(self) -> float:
        """1 is none; counts prompt and output."""

    @property
    def presence_penalty(self) -> float:
        """Subtracted once from tokens of the output."""

    @property
    def frequency_penalty(self) -> float:
        """Subtracted for each time a token stands in the output."""

    @property
    def step(self) -> int:
        """Tokens generated before this one, known or not."""

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """Only the repetition penalty reads them."""

    @property
    def output_token_ids(self) -> Sequence[int]:
        """Tokens generated so far."""

    @property
    def history(self) -> AdjustmentHistory:
        """What penalties and biases have come to; shared by the rows of one sequence."""

    @property
    def logprobs(self) -> int | None:
        """Alternatives to report; None reports nothing."""

    @property
    def logit_bias(self) -> Mapping[int, float]:
        """Added to logits, by token."""

    @property
    def banned_token_ids(self) -> Collection[int]:
        """Never chosen."""
