"""Many new tokens of each sequence: the gated delta rule 64 tokens at a time.

Four kernels, one after the other. ``delta_convolve`` makes queries, keys and values;
``delta_solve`` solves each chunk's triangular system, which needs no state; ``delta_scan`` takes
the state of each head through the chunks of a sequence; ``delta_finish`` norms and gates what came
out. A run is the new tokens of one sequence; chunks begin at its start.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.attention.triton.parts import dot
from zse.kernels.delta.triton.parts import L2_EPSILON, Rates, Summands, read, read_gates, silu
from zse.kernels.triton.parts import to_bf16, wait_for_inputs


@triton.jit
def load_tile(values, row, mask, first, columns, DIM: tl.constexpr):
    """Return a tile [rows, DIM] of 16-bit values, zeros where there are no rows."""
    at = row[:, None] * columns + first + tl.arange(0, DIM)[None, :]
    return tl.load(values + at, mask=mask[:, None], other=0.0)


@triton.jit
def delta_convolve(
    inputs, convolution, rings, first_rows, num_rows, first_positions, slots, convolved,
    input_rows, input_splits, key_heads, value_heads,
    DIM: tl.constexpr, TAPS: tl.constexpr, TOKENS: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Convolve the channels of one head, norm those of queries and keys, store 16 bits.

    Program: (chunk, run, head of queries, keys or values).
    """
    wait_for_inputs(PDL)
    run, head = tl.program_id(1), tl.program_id(2)
    count = tl.load(num_rows + run)
    first = tl.program_id(0) * TOKENS
    if first < count:
        token = first + tl.arange(0, TOKENS)
        inside = token < count
        row = tl.load(first_rows + run).to(tl.int64) + token
        position = tl.load(first_positions + run) + token
        channels = (2 * key_heads + value_heads) * DIM
        channel = head * DIM + tl.arange(0, DIM)
        projected = Summands(inputs, input_rows, input_splits, channels + value_heads * DIM)
        ring = rings + tl.load(slots + run).to(tl.int64) * TAPS * channels
        total = tl.zeros((TOKENS, DIM), tl.float32)
        for back in tl.static_range(0, TAPS):
            own = (inside & (token >= back))[:, None] & (channel >= 0)[None, :]
            value = read(projected, (row - back)[:, None], channel[None, :], own)
            if back > 0:
                line = ((position + TAPS - back) % TAPS)[:, None] * channels + channel[None, :]
                kept = (inside & (token < back) & (position >= back))[:, None]
                value += tl.load(ring + line, mask=kept, other=0.0)
            total += value * tl.load(convolution + channel * TAPS + TAPS - 1 - back)[None, :]
        total = silu(total)
        if head < 2 * key_heads:
            total *= tl.rsqrt(tl.sum(total * total, axis=1) + L2_EPSILON)[:, None]
        if head < key_heads:
            total *= DIM**-0.5
        at = row[:, None] * channels + channel[None, :]
        tl.store(convolved + at, to_bf16(total, PLAIN), mask=inside[:, None])


@triton.jit
def invert(system, TOKENS: tl.constexpr):
    """Return the inverse of 1 + a strictly lower triangular matrix, row by row."""
    line = tl.arange(0, TOKENS)
    inverse = -system
    for index in range(1, TOKENS):
        here = line[:, None] == index
        row = tl.sum(tl.where(here, inverse, 0.0), axis=0)
        row += tl.sum(row[:, None] * inverse, axis=0)
        inverse = tl.where(here, row[None, :], inverse)
    return inverse + tl.where(line[:, None] == line[None, :], 1.0, 0.0)


@triton.jit
def delta_solve(
    convolved, gates, decay, step_bias, first_rows, num_rows, wanted_keys, wanted_values,
    gate_rows, gate_splits, key_heads, value_heads,
    DIM: tl.constexpr, TOKENS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Solve the system of one chunk and value head. Program: (chunk, run, value head).

    What the chunk's tokens add to a state is wanted_values - wanted_keys @ state: the steps of a
    chunk depend on each other by its keys alone.
    """
    wait_for_inputs(PDL)
    run, head = tl.program_id(1), tl.program_id(2)
    count = tl.load(num_rows + run)
    first = tl.program_id(0) * TOKENS
    if first < count:
        token = first + tl.arange(0, TOKENS)
        inside = token < count
        row = tl.load(first_rows + run).to(tl.int64) + token
        channels = (2 * key_heads + value_heads) * DIM
        key_head = key_heads + head // (value_heads // key_heads)
        key = load_tile(convolved, row, inside, key_head * DIM, channels, DIM)
        value = load_tile(convolved, row, inside, (2 * key_heads + head) * DIM, channels, DIM)
        summed = Summands(gates, gate_rows, gate_splits, 2 * value_heads)
        rates = Rates(decay, step_bias)
        log_decay, beta = read_gates(summed, rates, row, inside, head, value_heads)
        total = tl.cumsum(log_decay, axis=0)
        line = tl.arange(0, TOKENS)
        system = dot(key, tl.trans(key), tl.zeros((TOKENS, TOKENS), tl.float32), PLAIN)
        below = line[:, None] > line[None, :]
        between = tl.exp(tl.where(below, total[:, None] - total[None, :], 0.0))
        system = tl.where(below, system * between * beta[:, None], 0.0)
        # Not in 16 bits: where keys resemble each other its entries nearly cancel.
        inverse = invert(system, TOKENS)
        grown = key.to(tl.float32) * (beta * tl.exp(total))[:, None]
        scaled = value.to(tl.float32) * beta[:, None]
        at = (row * value_heads + head)[:, None] * DIM + tl.arange(0, DIM)[None, :]
        mask = inside[:, None]
        tl.store(wanted_keys + at, to_bf16(tl.dot(inverse, grown), PLAIN), mask=mask)
        tl.store(wanted_values + at, to_bf16(tl.dot(inverse, scaled), PLAIN), mask=mask)


@triton.jit
def delta_scan(
    convolved, gates, decay, step_bias, first_rows, num_rows, first_positions, slots,
    wanted_keys, wanted_values, states,
    gate_rows, gate_splits, key_heads, value_heads,
    DIM: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Take some columns of a state through a run. Program: (columns, value head, run).

    The output takes the place of ``wanted_values``.
    """
    wait_for_inputs(PDL)
    head, run = tl.program_id(1), tl.program_id(2)
    count = tl.load(num_rows + run)
    first_row = tl.load(first_rows + run).to(tl.int64)
    key_line = tl.arange(0, DIM)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.load(slots + run).to(tl.int64)
    place = states + (slot * value_heads + head) * (DIM * DIM)
    place += key_line[:, None] * DIM + column[None, :]
    began = (tl.zeros((DIM, COLUMNS), tl.int32) + tl.load(first_positions + run)) > 0
    state = tl.load(place, mask=began, other=0.0)
    channels = (2 * key_heads + value_heads) * DIM
    key_head = head // (value_heads // key_heads)
    summed = Summands(gates, gate_rows, gate_splits, 2 * value_heads)
    rates = Rates(decay, step_bias)
    line = tl.arange(0, TOKENS)
    seen = line[:, None] >= line[None, :]
    for first in range(0, count, TOKENS):
        token = first + line
        inside = token < count
        row = first_row + token
        query = load_tile(convolved, row, inside, key_head * DIM, channels, DIM)
        key = load_tile(convolved, row, inside, (key_heads + key_head) * DIM, channels, DIM)
        wanted = load_tile(wanted_keys, row, inside, head * DIM, value_heads * DIM, DIM)
        log_decay, _ = read_gates(summed, rates, row, inside, head, value_heads)
        total = tl.cumsum(log_decay, axis=0)
        all_decay = tl.sum(log_decay, axis=0)
        at = (row * value_heads + head)[:, None] * DIM + column[None, :]
        own = tl.load(wanted_values + at, mask=inside[:, None], other=0.0).to(tl.float32)
        narrow = to_bf16(state, PLAIN)
        empty = tl.zeros((TOKENS, COLUMNS), tl.float32)
        added = to_bf16(own - dot(wanted, narrow, empty, PLAIN), PLAIN)
        scores = dot(query, tl.trans(key), tl.zeros((TOKENS, TOKENS), tl.float32), PLAIN)
        between = tl.exp(tl.where(seen, total[:, None] - total[None, :], 0.0))
        scores = to_bf16(tl.where(seen, scores * between, 0.0), PLAIN)
        output = dot(query, narrow, empty, PLAIN) * tl.exp(total)[:, None]
        output = dot(scores, added, output, PLAIN)
        tl.store(wanted_values + at, to_bf16(output, PLAIN), mask=inside[:, None])
        kept = to_bf16(key.to(tl.float32) * tl.exp(all_decay - total)[:, None], PLAIN)
        state = dot(tl.trans(kept), added, state * tl.exp(all_decay), PLAIN)
    tl.store(place, state)


@triton.jit
def delta_finish(
    inputs, mixed, norm, first_rows, num_rows, first_positions, slots, rings, outputs,
    input_rows, input_splits, key_heads, value_heads, epsilon,
    DIM: tl.constexpr, TAPS: tl.constexpr, TOKENS: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Norm and gate one value head, and keep what the next tokens' convolution looks back at.

    Program: (chunk, run, head of queries, keys or values). Those of queries and keys only keep.
    """
    wait_for_inputs(PDL)
    run, head = tl.program_id(1), tl.program_id(2)
    count = tl.load(num_rows + run)
    first = tl.program_id(0) * TOKENS
    if first < count:
        token = first + tl.arange(0, TOKENS)
        inside = token < count
        row = tl.load(first_rows + run).to(tl.int64) + token
        column = tl.arange(0, DIM)
        channels = (2 * key_heads + value_heads) * DIM
        projected = Summands(inputs, input_rows, input_splits, channels + value_heads * DIM)
        last = (inside & (token >= count - TAPS))[:, None] & (column >= 0)[None, :]
        newest = read(projected, row[:, None], head * DIM + column[None, :], last)
        position = tl.load(first_positions + run) + token
        ring = rings + tl.load(slots + run).to(tl.int64) * TAPS * channels
        line = (position % TAPS)[:, None] * channels + head * DIM + column[None, :]
        tl.store(ring + line, newest, mask=last)
        if head >= 2 * key_heads:
            first_column = (head - 2 * key_heads) * DIM
            at = row[:, None] * (value_heads * DIM) + first_column + column[None, :]
            every = inside[:, None] & (column >= 0)[None, :]
            values = tl.load(mixed + at, mask=every, other=0.0).to(tl.float32)
            values *= tl.rsqrt(tl.sum(values * values, axis=1) / DIM + epsilon)[:, None]
            values *= tl.load(norm + column)[None, :]
            gate = read(projected, row[:, None], channels + first_column + column[None, :], every)
            tl.store(outputs + at, to_bf16(values * silu(gate), PLAIN), mask=every)
