"""From sampling rows to ``struct zse_sampling``, and from its answers to tokens."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

from zse.backends.types import SampledToken, mask_bytes
from zse.kernels.lm_head_sample.row import uniform
from zse.kernels.native import structs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.types import StepBatch
    from zse.kernels.lm_head_sample.row import SamplingRow

_ROW = struct.Struct("=5Q4d6if4x2Q")
"""``struct zse_sampling``, field by field."""
ROW_BYTES = _ROW.size
_ANSWER = struct.Struct("=if")
_ANSWER_OFFSET = structs.Sampling.token.offset
_NONE = -1
_GREEDY = _ROW.pack(0, 0, 0, 0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, _NONE, _NONE, 0, 0.0, 0, 0)
"""A row that asks for the likeliest token and for nothing else."""


class Choices:
    """The sampling rows of a step, in the order of its rows, as one array of structures.

    Args:
        batch: What was asked for.
        order: Indices of its chunks as their rows follow each other.
        vocab_size: Tokens that there are.
    """

    def __init__(self, batch: StepBatch, order: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._kept: list[object] = []
        self._alternatives: dict[int, tuple[array[int], array[float]]] = {}
        self.rows = [row for index in order for row in batch.sampling[index]]
        masks = self._write_masks(batch, order)
        data = bytearray()
        for index, row in enumerate(self.rows):
            data += self._packed(index, row, next(masks) if row.is_masked else 0)
        self._data = array("B", data)
        self.address, _ = self._data.buffer_info()

    def answer(self, index: int) -> SampledToken:
        """Return the token that was chosen for a row, and what was asked for about it."""
        token, logprob = _ANSWER.unpack_from(self._data, index * ROW_BYTES + _ANSWER_OFFSET)
        if self.rows[index].logprobs is None:
            return SampledToken(token)
        tokens, logprobs = self._alternatives[index]
        return SampledToken(token, logprob, list(zip(tokens, logprobs, strict=True)))

    def _packed(self, index: int, row: SamplingRow, mask: int) -> bytes:
        num_logprobs = _NONE if row.logprobs is None else min(row.logprobs, self._vocab_size)
        if row.is_greedy and not mask and num_logprobs < 0 and not row.is_adjusted:
            return _GREEDY
        num_entries, num_banned = 0, 0
        entries, banned, alternatives = (0, 0, 0), 0, (0, 0)
        if row.has_penalty or row.logit_bias:
            history = row.history
            history.advance(row)
            num_entries = len(history.tokens)
            entries = (
                history.tokens.buffer_info()[0],
                history.penalties.buffer_info()[0],
                history.additions.buffer_info()[0],
            )
        if row.banned_token_ids:
            num_banned = len(row.banned_token_ids)
            banned = self._address(array("i", row.banned_token_ids))
        if num_logprobs >= 0:
            found = array("i", bytes(4 * num_logprobs)), array("f", bytes(4 * num_logprobs))
            self._alternatives[index] = found
            alternatives = found[0].buffer_info()[0], found[1].buffer_info()[0]
        return _ROW.pack(
            *entries,
            banned,
            mask,
            0.0 if row.is_greedy else row.temperature,
            row.top_p,
            row.min_p,
            0.0 if row.is_greedy else uniform(row.seed, row.step),
            num_entries,
            num_banned,
            row.top_k,
            _NONE if row.known_token_id is None else row.known_token_id,
            num_logprobs,
            0,
            0.0,
            *alternatives,
        )

    def _write_masks(self, batch: StepBatch, order: Sequence[int]) -> Iterator[int]:
        """Have the masks written; return their addresses in the order of the step's rows."""
        if batch.masks is None:
            return iter(())
        counts = [sum(row.is_masked for row in rows) for rows in batch.sampling]
        row_bytes = mask_bytes(self._vocab_size)
        address = self._address(array("I", bytes(row_bytes * sum(counts))))
        batch.masks.write(address, row_bytes)
        firsts = [0, *accumulate(counts)]
        return (
            address + number * row_bytes
            for index in order
            for number in range(firsts[index], firsts[index + 1])
        )

    def _address(self, numbers: array[int]) -> int:
        self._kept.append(numbers)
        return numbers.buffer_info()[0]
