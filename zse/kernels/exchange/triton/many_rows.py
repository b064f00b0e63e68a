"""The norm of the sum over ranks of many rows, turned and rounded on its way out."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.exchange.triton.inbox import (
    GROUP,
    Inbox,
    half_of,
    order_stores,
    places_of,
    send_to_all,
    sum_of_ranks,
    words_of,
)
from zse.kernels.linear.triton.rotate import signs
from zse.kernels.triton.parts import sum_partials, wait_for_inputs
from zse.kernels.turned.triton.kernel import columns_of, store_codes, turned


@triton.jit
def place_of(inbox, number, index):
    """Return the first word of where the row ``index`` of a program goes to: two share a half."""
    return half_of(inbox, number + index // 2) + (index & 1) * (inbox.slot_words // 2)


@triton.jit
def rank_norm_turned(
    residual, added, norm, outputs, scales, words, offsets, state, failed, broken,
    hidden, added_rows, splits, rows, rank, ranks, slot_words, patience, epsilon,
    GROUPS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Add the pending sums of all ranks to rows of the stream, store their RMSNorm turned.

    Program: every ``programs``-th row. Its own part of the next row is on its way to the others
    while it waits for their parts of this one: sums are sent as bfloat16, so that two rows share
    half of the slots. A row is sent again to a place four rows later, when its reader has told by
    the row two later that the place is empty. So that both places of a half are known to be empty
    when another kernel begins, rows are exchanged by twos, the last one with a few zeros.

    Operands:
        residual: float32 [rows, hidden], changed in place.
        added: float32 [splits, added_rows, hidden].
        norm: float32 [hidden].
        outputs: int8 [rows, hidden].
        scales: float32 [rows].
    """
    inbox = Inbox(words, offsets, state, failed, broken, rank, ranks, slot_words, patience)
    columns = columns_of(0, GROUPS)
    inside = columns < hidden
    places = places_of(GROUPS, True)
    sent = places < hidden // 2
    token = places < GROUP // 2
    zeros, no_words = columns * 0, places * 0  # tiles: the interpreter's masks need some
    sign = signs(0, GROUP, GROUP)
    weight = tl.load(norm + columns, mask=inside, other=0.0)
    wait_for_inputs(PDL)
    program = tl.program_id(0)
    counter = state + 1 + program
    number = tl.load(counter)
    patient = 1 - tl.load(state)
    length = hidden.to(tl.int64)
    stride = added_rows * length
    pairs = tl.cdiv(tl.cdiv(rows - program, tl.num_programs(0)), 2)
    part = sum_partials(added + program * length, columns, inside, splits, stride)
    own = words_of(part, True, PLAIN)
    send_to_all(inbox, place_of(inbox, number, 0), own, places, sent)
    for index in range(pairs * 2):
        row = program + index * tl.num_programs(0)
        next_row = row + tl.num_programs(0)
        wanted = inside & (zeros + next_row < rows)
        part = sum_partials(added + next_row * length, columns, wanted, splits, stride)
        next_own = words_of(part, True, PLAIN)
        order_stores(PLAIN)
        is_sent = sent & (token | (no_words + next_row < rows)) & (no_words + index + 1 < pairs * 2)
        send_to_all(inbox, place_of(inbox, number, index + 1), next_own, places, is_sent)
        held = inside & (zeros + row < rows)
        stream = residual + row * length
        values = tl.load(stream + columns, mask=held, other=0.0)
        place = place_of(inbox, number, index)
        expected = sent & (token | (no_words + row < rows))
        total, patient = sum_of_ranks(inbox, place, own, patient, places, expected, True, PLAIN)
        values += total
        tl.store(stream + columns, values, mask=held)
        mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
        values = values * tl.rsqrt(mean + epsilon) * weight
        found, most = turned(values, sign, PLAIN)
        if row < rows:
            tl.store(scales + row, most / (127.0 * GROUP))
        store_codes(found, most, outputs + row * length, columns, held)
        own = next_own
    tl.store(counter, number + pairs)
