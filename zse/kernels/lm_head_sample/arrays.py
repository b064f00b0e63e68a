"""What sampling reads and writes in device memory: each array once, with its elements and length.

Layouts, kernels' arguments and writers are made of these records. A record holds addresses, or
where the arrays start in a block of memory; every element is four bytes.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, NewType

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.kernels.lm_head_sample.row import SamplingRow


Integers = NewType("Integers", int)
"""Address of int32 numbers, or where they start in a block."""
Floats = NewType("Floats", int)
"""The same of float32 numbers."""


def integers(count: str) -> Integers:
    """Return a field of a record of arrays; ``count`` names what it has an element for."""
    return field(default=Integers(0), metadata={"element": "i32", "count": count})


def floats(count: str) -> Floats:
    """Return a field likewise."""
    return field(default=Floats(0), metadata={"element": "fp32", "count": count})


@record
class SamplingArrays:
    """Parameters. A row of padding has temperature 0 and a slot nobody reads."""

    temperature: Floats = floats("rows")
    """Below ``GREEDY_BELOW`` the row is greedy."""
    top_k: Integers = integers("rows")
    """0 is none."""
    top_p: Floats = floats("rows")
    """1 is none."""
    min_p: Floats = floats("rows")
    """0 is none."""
    uniform: Floats = floats("rows")
    """In [0, 1), from ``row.uniform_single``."""
    slots: Integers = integers("rows")
    """The entry of ``SampledArrays.last_tokens`` that the row's token goes to."""
    entry_row: Integers = integers("entries")
    entry_token: Integers = integers("entries")
    """A (row, token) stands at most once. Tokens outside the vocabulary are ignored."""
    entry_penalty: Floats = floats("entries")
    """Repetition penalty, or 1."""
    entry_add: Floats = floats("entries")
    """Added after the penalty; -inf bans. Overwritten with the logits as they were before."""
    entry_seen: Integers = integers("entries")
    """1 where presence is counted already."""
    run_first: Integers = integers("rows")
    """The row's first entry."""
    run_length: Integers = integers("rows")
    """Its entries, if the token in ``last_tokens`` is to be counted too; else 0. The last of them
    is spare."""
    repetition: Floats = floats("rows")
    """Read with ``run_length``, as are the next two."""
    presence: Floats = floats("rows")
    frequency: Floats = floats("rows")
    mask_row: Integers = integers("rows")
    """Which mask says what tokens may come; -1 for none. Read with ``SamplingKind.masked``."""


@record
class SampledArrays:
    """Results. The last three are written only with ``SamplingKind.logprobs``."""

    tokens: int = integers("rows")
    last_tokens: int = integers("slots")
    """Feeds the next step on the device."""
    logprobs: int = floats("rows")
    """The chosen token's, from the logits before any adjustment."""
    top_tokens: int = integers("alternatives")
    """[rows, 20], likeliest first, lowest id first on a tie; -1 past the vocabulary."""
    top_logprobs: int = floats("alternatives")
    """[rows, 20]."""


@record
class Workspace:
    """What the sampling kernels tell each other."""

    block_max: int = floats("blocks")
    block_arg: int = integers("blocks")
    block_mass: int = floats("blocks")
    block_min: int = floats("blocks")
    block_count: int = integers("blocks")
    kept_mass: int = floats("blocks")
    bin_count: int = integers("block_bins")
    bin_mass: int = floats("block_bins")
    edges: int = floats("row_bins")
    second_count: int = integers("block_bins")
    second_mass: int = floats("block_bins")
    second_edges: int = floats("row_bins")
    state_values: int = floats("states")
    state_counts: int = integers("states")
    cut_values: int = floats("states")
    cut_counts: int = integers("states")
    list_values: int = floats("candidates")
    list_tokens: int = integers("candidates")
    best_values: int = floats("block_alternatives")
    best_tokens: int = integers("block_alternatives")
    model_max: int = floats("blocks")
    """Of the logits as the model gave them, as is ``model_mass``."""
    model_mass: int = floats("blocks")


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
    masked: bool = False
    """Some row has a mask."""

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
            masked=any(row.is_masked for row in rows),
        )
