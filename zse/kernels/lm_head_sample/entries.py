"""Penalties, biases and bans of a batch as one list of (row, token) adjustments.

The list is merged here: a token that is penalized, biased and banned has one entry. A step's
logits are then adjusted by one scatter, whose programs never write the same place.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from zse.kernels.lm_head_sample.arrays import is_adjusted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.kernels.lm_head_sample.parameters import SamplingParameters


class AdjustmentEntries(NamedTuple):
    """Parallel arrays; ``logit = (logit > 0 ? logit / penalty : logit * penalty) + addition``."""

    rows: array[int]
    """i32."""
    tokens: array[int]
    """i32."""
    penalties: array[float]
    """fp32."""
    additions: array[float]
    """fp32."""


def adjustment_entries(rows: Sequence[SamplingParameters | None]) -> AdjustmentEntries:
    """Return the merged adjustments of a batch.

    Repetition counts prompt and output; presence and frequency count the output alone.

    Args:
        rows: One for each row of logits, in order; None is a row of padding.
    """
    entries = AdjustmentEntries(
        rows=array("i"), tokens=array("i"), penalties=array("f"), additions=array("f")
    )
    for index, row in enumerate(rows):
        if row is None or not is_adjusted(row):
            continue
        repeated = _repeated(row)
        additions = _additions(row)
        tokens = sorted(repeated | additions.keys())
        entries.rows.extend([index] * len(tokens))
        entries.tokens.extend(tokens)
        penalty = row.repetition_penalty
        entries.penalties.extend(penalty if token in repeated else 1.0 for token in tokens)
        entries.additions.extend(additions.get(token, 0.0) for token in tokens)
    return entries


def _repeated(row: SamplingParameters) -> set[int]:
    if row.repetition_penalty == 1.0:
        return set()
    return {*row.prompt_token_ids, *row.output_token_ids}


def _additions(row: SamplingParameters) -> dict[int, float]:
    additions: dict[int, float] = {}
    if row.presence_penalty != 0.0 or row.frequency_penalty != 0.0:
        for token, times in Counter(row.output_token_ids).items():
            additions[token] = -(row.presence_penalty + row.frequency_penalty * times)
    for token, bias in row.logit_bias.items():
        additions[token] = additions.get(token, 0.0) + bias
    additions.update((token, float("-inf")) for token in row.banned_token_ids)
    return additions
