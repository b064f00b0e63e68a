"""What sampling reads and writes in device memory: addresses, one entry per row of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.kernels.lm_head_sample.row import SamplingRow


@record
class SamplingArrays:
    """Parameters, by address. A row of padding has temperature 0 and a slot nobody reads."""

    temperature: int
    """fp32 [rows]; below ``GREEDY_BELOW`` the row is greedy."""
    top_k: int
    """i32 [rows]; 0 is none."""
    top_p: int
    """fp32 [rows]; 1 is none."""
    min_p: int
    """fp32 [rows]; 0 is none."""
    uniform: int
    """fp32 [rows] in [0, 1), from ``row.uniform_single``."""
    slots: int
    """i32 [rows]: the entry of ``SampledArrays.last_tokens`` that the row's token goes to."""
    entry_row: int = 0
    """i32 [num_adjustments]."""
    entry_token: int = 0
    """i32 [num_adjustments]; a (row, token) stands at most once. Tokens outside the vocabulary
    are ignored."""
    entry_penalty: int = 0
    """fp32 [num_adjustments]: repetition penalty, or 1."""
    entry_add: int = 0
    """fp32 [num_adjustments]: added after the penalty; -inf bans. Overwritten with the logits as
    they were before."""
    entry_seen: int = 0
    """i32 [num_adjustments]: 1 where presence is counted already."""
    run_first: int = 0
    """i32 [rows]: the row's first adjustment."""
    run_length: int = 0
    """i32 [rows]: its adjustments, if the token in ``last_tokens`` is to be counted too; else 0.
    The last of them is spare."""
    repetition: int = 0
    """fp32 [rows]; read with ``run_length``, as are the next two."""
    presence: int = 0
    """fp32 [rows]."""
    frequency: int = 0
    """fp32 [rows]."""


@record
class SampledArrays:
    """Results, by address. The last three are written only with ``SamplingKind.logprobs``."""

    tokens: int
    """i32 [rows]."""
    last_tokens: int
    """i32 [slots]: feeds the next step on the device."""
    logprobs: int = 0
    """fp32 [rows]: the chosen token's, from the logits before any adjustment."""
    top_tokens: int = 0
    """i32 [rows, 20], likeliest first, lowest id first on a tie; -1 past the vocabulary."""
    top_logprobs: int = 0
    """fp32 [rows, 20]."""


@record
class SamplingKind:
    """Which kernels a batch needs. A kind that asks for more than a row needs changes nothing."""

    random: bool = False
    """Some row has a temperature."""
    truncated: bool = False
    """Some row with a temperature has top_k, top_p or min_p."""
    logprobs: bool = False
    adjusted: bool = False
    """Some row has penalties, biases or bans."""

    @classmethod
    def of(cls, rows: Iterable[SamplingRow], vocab: int) -> SamplingKind:
        """Return what these rows need, and no more."""
        rows = list(rows)
        drawn = [row for row in rows if not row.is_greedy]
        return cls(
            random=bool(drawn),
            truncated=any(row.is_truncated(vocab) for row in drawn),
            logprobs=any(row.logprobs is not None for row in rows),
            adjusted=any(row.is_adjusted for row in rows),
        )
