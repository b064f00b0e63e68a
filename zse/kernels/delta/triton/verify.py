"""Tokens of a sequence that may be wrong: each leaves the state behind it in a slot of its own.

A program takes a head through all rows of a sequence, so the state is read once and stays where it
is computed; what is written of it is what a sequence may have to go back to. Rows are computed as
``delta_decode`` computes them, but for last bits that a compiler contracts otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.delta.triton.decode import move_on, store_head, to_unit_length
from zse.kernels.delta.triton.parts import Rates, Summands, read, read_gates, silu


@triton.jit
def convolve_row(
    inputs, source, ring, convolution, row, index, channel, position, channels, TAPS: tl.constexpr
):  # fmt: skip
    """Return SiLU of the convolution of some channels of row ``index`` of a sequence.

    The tokens before it are rows of the step or, before its first row, lines of ``source``: of the
    state that the sequence comes with. All that the next token looks back at goes to ``ring``.
    """
    age = tl.zeros(channel.shape, tl.int32) + position  # tiles: the interpreter's masks need them
    behind = tl.zeros(channel.shape, tl.int32) + index
    newest = read(inputs, row, channel, channel >= 0)
    total = newest * tl.load(convolution + channel * TAPS + TAPS - 1)
    for back in tl.static_range(1, TAPS):
        line = ((position + TAPS - back) % TAPS) * channels + channel
        past = tl.load(source + line, mask=(age >= back) & (behind < back), other=0.0)
        past += read(inputs, row - back, channel, behind >= back)
        total += past * tl.load(convolution + channel * TAPS + TAPS - 1 - back)
        tl.store(ring + line, past, mask=behind > 0)
    tl.store(ring + (position % TAPS) * channels + channel, newest)
    return silu(total)


@triton.jit
def delta_verify(
    inputs, gates, convolution, decay, step_bias, norm, positions, slots, runs, rings, states,
    outputs, scales, sums,
    input_rows, input_splits, gate_rows, gate_splits, key_heads, value_heads, epsilon,
    DIM: tl.constexpr, TAPS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Move one head's state along the rows of a sequence. Program: (its first row, value head).

    Of row i the state goes to slot ``slots[i]``; that of the first row is where it comes from.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    first_row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    count = tl.load(runs + first_row)
    if count > 0:
        keys, wide = tl.arange(0, DIM), tl.arange(0, DIM)
        start = tl.load(positions + first_row)
        own_slot = tl.load(slots + first_row).to(tl.int64)
        place = keys[:, None] * DIM + wide[None, :]
        at = states + (own_slot * value_heads + head) * (DIM * DIM) + place
        began = (tl.zeros((DIM, DIM), tl.int32) + start) > 0
        state = tl.load(at, mask=began, other=0.0)
        weight = tl.load(norm + wide)
        if PDL:
            tl.extra.cuda.gdc_wait()

        key_columns, key_head = key_heads * DIM, head // (value_heads // key_heads)
        channels = 2 * key_columns + value_heads * DIM
        projected = Summands(inputs, input_rows, input_splits, channels + value_heads * DIM)
        steps = Summands(gates, gate_rows, gate_splits, 2 * value_heads)
        source = rings + own_slot * TAPS * channels
        first = key_head * DIM
        for index in range(count):
            row, position = first_row + index, start + index
            slot = tl.load(slots + row).to(tl.int64)
            ring = rings + slot * TAPS * channels
            query = convolve_row(
                projected, source, ring, convolution, row, index, first + keys, position,
                channels, TAPS,
            )  # fmt: skip
            key = convolve_row(
                projected, source, ring, convolution, row, index, key_columns + first + keys,
                position, channels, TAPS,
            )  # fmt: skip
            value = convolve_row(
                projected, source, ring, convolution, row, index,
                2 * key_columns + head * DIM + wide, position, channels, TAPS,
            )  # fmt: skip
            query, key = to_unit_length(query, key, DIM)
            line = row + tl.zeros((1,), tl.int64)
            log_decay, beta = read_gates(
                steps, Rates(decay, step_bias), line, line >= 0, head, value_heads
            )
            state, mixed = move_on(state, query, key, value, log_decay, beta)
            tl.store(states + (slot * value_heads + head) * (DIM * DIM) + place, state)
            mixed = mixed * tl.rsqrt(tl.sum(mixed * mixed, axis=0) / DIM + epsilon) * weight
            mixed *= silu(read(projected, row, channels + head * DIM + wide, wide >= 0))
            store_head(mixed, outputs, scales, sums, row, head, value_heads, DIM, PLAIN)
