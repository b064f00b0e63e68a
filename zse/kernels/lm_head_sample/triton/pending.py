"""Counts the token that only the device knows among a row's adjustments."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def count_pending(
    slots,
    last_tokens,
    entry_token,
    entry_penalty,
    entry_add,
    entry_seen,
    run_first,
    run_length,
    repetition,
    presence,
    frequency,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Let the row's newest token take its penalties, before they are applied. Program: (row).

    The token has an entry if it stood in the text before or is biased; else it takes the spare
    one, the last of the row's run.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    length = tl.load(run_length + row)
    if length > 0:
        first = tl.load(run_first + row)
        token = tl.load(last_tokens + tl.load(slots + row))
        spare = length - 1
        found = -1
        for start in range(0, spare, CHUNK):
            at = start + tl.arange(0, CHUNK)
            tokens = tl.load(entry_token + first + at, mask=at < spare, other=-1)
            found = tl.maximum(found, tl.max(tl.where(tokens == token, at, -1)))
        place = first + tl.where(found < 0, spare, found)
        penalty = tl.load(repetition + row)
        counted = tl.load(frequency + row)
        counted += tl.where(tl.load(entry_seen + place) == 0, tl.load(presence + row), 0.0)
        tl.store(entry_token + place, token)
        tl.store(entry_add + place, tl.load(entry_add + place) - counted)
        if penalty != 1.0:
            tl.store(entry_penalty + place, penalty)
