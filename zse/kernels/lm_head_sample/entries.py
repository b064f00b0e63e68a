"""Penalties, biases and bans of a batch as one list of (row, token) adjustments.

The list is merged here: a token that is penalized, biased and banned has one entry. A step's
logits are then adjusted by one scatter, whose programs never write the same place. Each sequence
keeps its own part of the list, so that a step costs what its new tokens cost, not its whole text.

A step may be submitted before the host knows the token ahead of it. Then the device counts that
one: it finds the token among the entries of its row, or takes the spare one at their end.
"""

from __future__ import annotations

from array import array
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zse.kernels.lm_head_sample.row import SamplingRow

NO_TOKEN = -1
_FORBIDDEN = float("-inf")
_CERTAIN = 1e9
"""Above every logit, and finite: log-probabilities are of the logits as they were before."""


class PendingRuns(NamedTuple):
    """For each row, where its entries are if the device has a token to count, and how it counts."""

    first: array[int]
    """i32: number of the row's first entry."""
    length: array[int]
    """i32: entries of the row, the spare one at the end included; 0 where nothing is pending."""
    repetition: array[float]
    """fp32."""
    presence: array[float]
    """fp32."""
    frequency: array[float]
    """fp32."""


class AdjustmentList:
    """Parallel arrays; ``logit = (logit > 0 ? logit / penalty : logit * penalty) + addition``."""

    def __init__(self) -> None:
        self.tokens = array("i")
        """i32; ``NO_TOKEN`` changes nothing."""
        self.penalties = array("f")
        self.additions = array("f")
        self.seen = array("i")
        """i32: 1 where presence is counted already."""

    def add(self, token: int, addition: float = 0.0) -> None:
        self.tokens.append(token)
        self.penalties.append(1.0)
        self.additions.append(addition)
        self.seen.append(0)


class AdjustmentEntries(AdjustmentList):
    """The adjustments of a batch, and the row of each."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.rows = array("i")
        whole, real = array("i", bytes(4 * num_rows)), array("f", bytes(4 * num_rows))
        self.pending = PendingRuns(
            first=whole[:], length=whole[:], repetition=real[:], presence=real[:], frequency=real[:]
        )


class AdjustmentHistory(AdjustmentList):
    """What the penalties and biases of one sequence have come to so far.

    Repetition counts prompt and output; presence and frequency count the output alone.
    """

    places: dict[int, int]
    """Where each token stands in ``tokens``, ``penalties`` and ``additions``."""
    _times: dict[int, int]
    _num_prompt: int
    _num_output: int

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._clear()

    def advance(self, row: SamplingRow) -> None:
        """Count the tokens of a sequence that have come since the last call.

        With other lists or other parameters than before, everything is counted anew.
        """
        prompt, output = row.prompt_token_ids, row.output_token_ids
        repetition, presence, frequency = (
            row.repetition_penalty,
            row.presence_penalty,
            row.frequency_penalty,
        )
        of = (prompt, output, row.logit_bias, repetition, presence, frequency)
        if not (self._of and all(map(is_, of, self._of)) and len(output) >= self._num_output):
            self._clear()
            self._of = of
            for token, bias in row.logit_bias.items():
                self.additions[self._place(token)] = bias
        if repetition != 1.0:
            for token in (*prompt[self._num_prompt :], *output[self._num_output :]):
                self.penalties[self._place(token)] = repetition
        if presence != 0.0 or frequency != 0.0:
            for token in output[self._num_output :]:
                times = self._times[token] = self._times.get(token, 0) + 1
                counted = presence + frequency * times
                place = self._place(token)
                self.additions[place] = row.logit_bias.get(token, 0.0) - counted
                self.seen[place] = 1
        self._num_prompt, self._num_output = len(prompt), len(output)

    def _clear(self) -> None:
        super().__init__()
        self.places = {}
        self._times = {}
        self._num_prompt = self._num_output = 0

    def _place(self, token: int) -> int:
        place = self.places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.add(token)
        return place


def adjustment_entries(
    rows: Sequence[SamplingRow | None], pending: Collection[int] = ()
) -> AdjustmentEntries:
    """Return the merged adjustments of a batch.

    Args:
        rows: One for each row of logits, in order; None is a row of padding.
        pending: Numbers of the rows whose newest token only the device knows.
    """
    entries = AdjustmentEntries(len(rows))
    for index, row in enumerate(rows):
        if row is None or not row.is_adjusted:
            continue
        first = len(entries.tokens)
        if row.known_token_id is not None:
            entries.add(row.known_token_id, _CERTAIN)
        else:
            _add_known(entries, row)
        if index in pending and row.has_penalty:
            entries.add(NO_TOKEN)
            entries.pending.first[index] = first
            entries.pending.length[index] = len(entries.tokens) - first
            entries.pending.repetition[index] = row.repetition_penalty
            entries.pending.presence[index] = row.presence_penalty
            entries.pending.frequency[index] = row.frequency_penalty
        entries.rows.extend(array("i", [index]) * (len(entries.tokens) - first))
    return entries


def _add_known(entries: AdjustmentEntries, row: SamplingRow) -> None:
    history, first = row.history, len(entries.tokens)
    history.advance(row)
    entries.tokens.extend(history.tokens)
    entries.penalties.extend(history.penalties)
    entries.additions.extend(history.additions)
    entries.seen.extend(history.seen)
    for token in dict.fromkeys(row.banned_token_ids):
        place = history.places.get(token)
        if place is None:
            entries.add(token, _FORBIDDEN)
        else:
            entries.additions[first + place] = _FORBIDDEN
