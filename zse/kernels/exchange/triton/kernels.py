"""Sums over ranks, with and without the norm that reads them, and parts of all ranks joined."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.exchange.triton.inbox import (
    GROUP,
    Inbox,
    half_of,
    order_stores,
    places_of,
    receive_two,
    send,
    send_to_all,
    sum_of_ranks,
    values_of,
    words_of,
)
from zse.kernels.triton.parts import (
    load_bias,
    store_activations,
    sum_partials,
    wait_for_inputs,
)


@triton.jit
def rank_norm(
    residual, added, row_index, norm, added_bias, outputs, scales, sums,
    words, offsets, state, failed, broken,
    hidden, added_rows, splits, rows, gathers, has_added_bias,
    rank, ranks, slot_words, patience, epsilon,
    GROUPS: tl.constexpr, NARROW: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Add the pending sums of all ranks to rows of the stream, store their RMSNorm.

    Program: every ``programs``-th row. The row's sum goes to the other GPUs as soon as it is made;
    while theirs are on their way, the row of the stream is read. The next kernel fetches its first
    weights meanwhile.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    inbox = Inbox(words, offsets, state, failed, broken, rank, ranks, slot_words, patience)
    groups = tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < hidden
    places = places_of(GROUPS, NARROW)
    sent = places < (hidden // 2 if NARROW else hidden)
    weight = tl.load(norm + columns, mask=inside, other=0.0)
    bias = load_bias(added_bias, columns, inside, has_added_bias)
    if PDL:
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    zero = program.to(tl.int64) * 0  # makes numbers of loops 64 bits wide
    counter = state + 1 + program
    number = tl.load(counter)
    patient = 1 - tl.load(state)
    stride = added_rows.to(tl.int64) * hidden
    row_groups = tl.cdiv(hidden, GROUP)
    for index in range(program, rows, tl.num_programs(0)):
        row = zero + index
        source = row
        if gathers != 0:
            source = tl.load(row_index + row).to(tl.int64)
        part = sum_partials(added + source * hidden, columns, inside, splits, stride) + bias
        own = words_of(part, NARROW, PLAIN)
        half = half_of(inbox, number)
        if index != program:
            order_stores(PLAIN)
        send_to_all(inbox, half, own, places, sent)
        stream = residual + source * hidden
        values = tl.load(stream + columns, mask=inside, other=0.0)
        total, patient = sum_of_ranks(inbox, half, own, patient, places, sent, NARROW, PLAIN)
        number += 1
        values += total
        if gathers == 0:
            tl.store(stream + columns, values, mask=inside)
        mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
        values = values * tl.rsqrt(mean + epsilon) * weight
        store_activations(
            values,
            outputs + row * hidden,
            scales + row * row_groups,
            sums + row * row_groups,
            columns,
            groups,
            inside,
            groups < row_groups,
        )
    tl.store(counter, number)


@triton.jit
def rank_sum(
    added, added_bias, words, offsets, state, failed, broken,
    count, columns, split_words, splits, has_added_bias,
    rank, ranks, slot_words, patience,
    GROUPS: tl.constexpr, NARROW: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Leave the sums of all ranks in the first summand. Program: every ``programs``-th tile."""
    wait_for_inputs(PDL)
    inbox = Inbox(words, offsets, state, failed, broken, rank, ranks, slot_words, patience)
    program = tl.program_id(0)
    zero = program.to(tl.int64) * 0  # makes numbers of loops 64 bits wide
    counter = state + 1 + program
    number = tl.load(counter)
    patient = 1 - tl.load(state)
    places = places_of(GROUPS, NARROW)
    inner = places_of(GROUPS, False)
    size: tl.constexpr = GROUPS * GROUP
    for tile in range(program, tl.cdiv(count, size), tl.num_programs(0)):
        first = (zero + tile) * size
        left = (tl.minimum(count - first, size)).to(tl.int32)
        inside = inner < left
        sent = places < (left // 2 if NARROW else left)
        line = added + first
        part = sum_partials(line, inner, inside, splits, split_words)
        if has_added_bias != 0:
            part += tl.load(added_bias + (first + inner) % columns, mask=inside, other=0.0)
        own = words_of(part, NARROW, PLAIN)
        half = half_of(inbox, number)
        if tile != program:
            order_stores(PLAIN)
        send_to_all(inbox, half, own, places, sent)
        total, patient = sum_of_ranks(inbox, half, own, patient, places, sent, NARROW, PLAIN)
        number += 1
        tl.store(line + inner, total, mask=inside)
    tl.store(counter, number)


@triton.jit
def rank_sum_in_two(
    added, added_bias, words, offsets, state, failed, broken,
    count, columns, split_words, splits, has_added_bias,
    rank, ranks, slot_words, patience,
    GROUPS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Leave the sums of all ranks in the first summand, each tile added up by one rank.

    Program: every ``programs``-th run of as many tiles as there are ranks. Every rank sends each
    other one its part of that one's tile, adds up its own, and sends the sum to all: twice a tile
    over the link where ``rank_sum`` sends each tile to all the others.
    """
    wait_for_inputs(PDL)
    inbox = Inbox(words, offsets, state, failed, broken, rank, ranks, slot_words, patience)
    program = tl.program_id(0)
    zero = program.to(tl.int64) * 0  # makes numbers of loops 64 bits wide
    counter = state + 1 + program
    number = tl.load(counter)
    patient = 1 - tl.load(state)
    places = places_of(GROUPS, True)
    inner = places_of(GROUPS, False)
    size: tl.constexpr = GROUPS * GROUP
    every = tl.full(places.shape, True, tl.int1)
    runs = tl.cdiv(tl.cdiv(count, size), ranks)
    for run in range(program, runs, tl.num_programs(0)):
        half = half_of(inbox, number)
        if run != program:
            order_stores(PLAIN)
        own = tl.zeros(places.shape, tl.int32)
        for owner in range(ranks):
            at = (zero + run * ranks + owner) * size + inner
            inside = at < count
            part = sum_partials(added, at, inside, splits, split_words)
            if has_added_bias != 0:
                part += tl.load(added_bias + at % columns, mask=inside, other=0.0)
            packed = words_of(part, True, PLAIN)
            if owner == rank:
                own = packed
            else:
                send(inbox, half, owner, packed, places, every)
        total, patient = sum_of_ranks(inbox, half, own, patient, places, every, True, PLAIN)
        packed = words_of(total, True, PLAIN)
        half = half_of(inbox, number + 1)
        order_stores(PLAIN)
        send_to_all(inbox, half, packed, places, every)
        for owner in range(0, ranks, 2):
            words_0, words_1, patient = receive_two(
                inbox, half, owner, patient, places, every, PLAIN
            )
            at = (zero + run * ranks + owner) * size + inner
            values = values_of(tl.where(rank == owner, packed, words_0), True)
            tl.store(added + at, values, mask=at < count)
            exists = (tl.zeros(at.shape, tl.int32) + owner) < ranks - 1
            values = values_of(tl.where(rank == owner + 1, packed, words_1), True)
            tl.store(added + at + size, values, mask=(at + size < count) & exists)
        number += 2
    tl.store(counter, number)


@triton.jit
def rank_gather(
    part, outputs, words, offsets, state, failed, broken,
    rows, part_columns, own_columns, columns,
    rank, ranks, slot_words, patience,
    GROUPS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Put rows together of which each rank has some columns. Program: every ``programs``-th tile.

    All ranks send as many columns as the widest part has, so that all wait for the same.
    """
    wait_for_inputs(PDL)
    inbox = Inbox(words, offsets, state, failed, broken, rank, ranks, slot_words, patience)
    program = tl.program_id(0)
    zero = program.to(tl.int64) * 0  # makes numbers of loops 64 bits wide
    counter = state + 1 + program
    number = tl.load(counter)
    patient = 1 - tl.load(state)
    places = places_of(GROUPS, False)
    size: tl.constexpr = GROUPS * GROUP
    row_tiles = tl.cdiv(part_columns, size)
    for tile in range(program, rows * row_tiles, tl.num_programs(0)):
        row = zero + tile // row_tiles
        at = (tile % row_tiles) * size + places
        sent = at < part_columns
        values = tl.load(part + row * own_columns + at, mask=at < own_columns, other=0.0)
        own = words_of(values, False, PLAIN)
        half = half_of(inbox, number)
        if tile != program:
            order_stores(PLAIN)
        send_to_all(inbox, half, own, places, sent)
        line = outputs + row * columns
        for source in range(0, ranks, 2):
            words_0, words_1, patient = receive_two(
                inbox, half, source, patient, places, sent, PLAIN
            )
            to = source * part_columns + at
            values = values_of(tl.where(rank == source, own, words_0), False)
            tl.store(line + to, values, mask=sent & (to < columns))
            exists = (tl.zeros(to.shape, tl.int32) + source) < ranks - 1
            to += part_columns
            values = values_of(tl.where(rank == source + 1, own, words_1), False)
            tl.store(line + to, values, mask=sent & (to < columns) & exists)
        number += 1
    tl.store(counter, number)
