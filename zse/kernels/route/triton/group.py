"""Pairs of a token and a slot in the order of their experts: a counting sort without the host."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def group(chosen, order, starts, pairs, experts, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """Store one expert's pairs, ascending, behind those of the experts before it.

    Program: (expert). Each one counts for itself what comes before it, so none waits for another.

    Operands:
        chosen: int32 [pairs], the expert of each pair.
        order: int32 [pairs], numbers of pairs.
        starts: int32 [experts + 1], where the pairs of each expert begin, and the end of all.
        pairs: How many there are.
        experts: How many there are.
    """
    wait_for_inputs(PDL)
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    before = tl.zeros((CHUNK,), tl.int32)
    own = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, pairs, CHUNK):
        found = tl.load(chosen + first + lane, mask=first + lane < pairs, other=experts)
        before += (found < expert).to(tl.int32)
        own += (found == expert).to(tl.int32)
    start = tl.sum(before, 0)
    count = tl.sum(own, 0)
    tl.store(starts + expert, start)
    if expert == experts - 1:
        tl.store(starts + experts, start + count)
    if count > 0:
        place = start
        for first in range(0, pairs, CHUNK):
            found = tl.load(chosen + first + lane, mask=first + lane < pairs, other=experts)
            mine = (found == expert).to(tl.int32)
            rank = tl.cumsum(mine, 0) - 1
            tl.store(order + place + rank, first + lane, mask=mine > 0)
            place += tl.sum(mine, 0)
