"""The norm of the sum over ranks of a few rows, each of which several programs have a part of."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.exchange.triton.inbox import (
    EMPTY,
    GROUP,
    NANOSECONDS_BETWEEN_LOOKS,
    NOT_A_NUMBER,
    SPINS_BETWEEN_LOOKS,
    Inbox,
    clock,
    half_of,
    order_stores,
    places_of,
    send_to_all,
    still_empty,
    sum_of_ranks,
    words_of,
)
from zse.kernels.triton.parts import load_bias, quantize_last, sum_partials


@triton.jit
def tell_square(inbox, square, first, part, numbers, every, mask):
    """Leave the sum of a part's squares with the programs of a row, this one included.

    Nobody else sends to a GPU's slot of itself, so these words have their place there.
    """
    word = square.to(tl.int32, bitcast=True)
    word = tl.where(word == EMPTY, NOT_A_NUMBER, word)
    slot = (first + every).to(tl.int64) * 2 + (numbers & 1)
    slot = slot * inbox.ranks + inbox.rank
    tl.store(inbox.words + slot * inbox.slot_words + part, word, mask=mask)


@triton.jit
def sum_of_squares(inbox, half, parts, patient, PARTS: tl.constexpr, PLAIN: tl.constexpr):
    """Wait for the squares of all parts of a row; return their sum.

    All warps read the same few words, each at its own time, so none is cleared before all are seen.
    """
    every = tl.arange(0, PARTS)[None, :]
    mask = every < parts
    slot = inbox.words + half + inbox.rank * inbox.slot_words
    words = tl.load(slot + every, mask=mask, other=0, volatile=True)
    missing = still_empty(words)
    spins = missing * 0
    begin = clock(spins, PLAIN)
    while (missing & patient) != 0:
        words = tl.load(slot + every, mask=mask, other=0, volatile=True)
        missing = still_empty(words)
        spins += 1
        if spins % SPINS_BETWEEN_LOOKS == 0:
            now = clock(spins, PLAIN)
            if now - begin > NANOSECONDS_BETWEEN_LOOKS:
                is_broken = tl.load(inbox.broken, volatile=True) != 0
                if (now - begin > inbox.patience) | is_broken:
                    patient = patient * 0
    if missing != 0:
        tl.store(inbox.state, 1)
        tl.store(inbox.failed, 1)
    if not PLAIN:
        tl.debug_barrier()
    tl.store(slot + every, EMPTY, mask=mask)
    values = words.to(tl.float32, bitcast=True)
    return tl.sum(tl.sum(values, axis=1), axis=0)


@triton.jit
def store_part(
    inbox, half, parts, patient, values, hidden, epsilon, outputs, scales, sums,
    columns, groups, inside, kept, PARTS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Store a part of a row that is still to be divided by the row's norm, as activations.

    Codes do not depend on that norm, which only multiplies their scales; so they are made while the
    other programs' squares are on their way. Addresses are of the row; see ``store_activations``.
    """
    if outputs.dtype.element_ty == tl.int8:
        codes, scale, total = quantize_last(values)
        tl.store(outputs + columns, codes, mask=inside)
        squares = sum_of_squares(inbox, half, parts, patient, PARTS, PLAIN)
        scale *= tl.rsqrt(squares / hidden + epsilon)
        tl.store(scales + groups, scale, mask=kept)
        tl.store(sums + groups, scale * total, mask=kept)
    else:
        squares = sum_of_squares(inbox, half, parts, patient, PARTS, PLAIN)
        values *= tl.rsqrt(squares / hidden + epsilon)
        tl.store(outputs + columns, values.to(outputs.dtype.element_ty), mask=inside)


@triton.jit
def rank_norm_parts(
    residual, added, row_index, norm, added_bias, outputs, scales, sums,
    words, offsets, state, failed, broken,
    hidden, added_rows, splits, rows, gathers, has_added_bias,
    rank, ranks, slot_words, patience, epsilon,
    GROUPS: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Add the pending sums of all ranks to rows of the stream, store their RMSNorm.

    As ``rank_norm``, by more programs: of each row as many as have GROUPS groups of it.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    inbox = Inbox(words, offsets, state, failed, broken, rank, ranks, slot_words, patience)
    program = tl.program_id(0)
    parts = tl.cdiv(hidden, GROUPS * GROUP)
    part = program % parts
    first = program - part
    groups = part * GROUPS + tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < hidden
    places = places_of(GROUPS, False)
    weight = tl.load(norm + columns, mask=inside, other=0.0)
    bias = load_bias(added_bias, columns, inside, has_added_bias)
    if PDL:
        tl.extra.cuda.gdc_wait()
    zero = program.to(tl.int64) * 0  # makes numbers of loops 64 bits wide
    counter = state + 1 + program
    number = tl.load(counter)
    every = tl.arange(0, PARTS)
    others = every < parts
    numbers = tl.load(state + 1 + first + every, mask=others, other=0)
    patient = 1 - tl.load(state)
    stride = added_rows.to(tl.int64) * hidden
    row_groups = tl.cdiv(hidden, GROUP)
    kept = groups < row_groups
    begin = program // parts
    for index in range(begin, rows, tl.num_programs(0) // parts):
        row = zero + index
        source = row
        if gathers != 0:
            source = tl.load(row_index + row).to(tl.int64)
        summed = sum_partials(added + source * hidden, columns, inside, splits, stride) + bias
        own = words_of(summed, False, PLAIN)
        half = half_of(inbox, number)
        if index != begin:
            order_stores(PLAIN)
        send_to_all(inbox, half, own, places, inside)
        stream = residual + source * hidden
        values = tl.load(stream + columns, mask=inside, other=0.0)
        total, patient = sum_of_ranks(inbox, half, own, patient, places, inside, False, PLAIN)
        values += total
        square = tl.sum(tl.sum(values * values, axis=1), axis=0)
        tell_square(inbox, square, first, part, numbers, every, others)
        if gathers == 0:
            tl.store(stream + columns, values, mask=inside)
        store_part(
            inbox, half, parts, patient, values * weight, hidden, epsilon, outputs + row * hidden,
            scales + row * row_groups, sums + row * row_groups, columns, groups, inside, kept,
            PARTS, PLAIN,
        )  # fmt: skip
        number += 1
        numbers += 1
    tl.store(counter, number)
