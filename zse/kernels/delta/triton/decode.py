"""One new token of each sequence: convolution, gated delta rule, norm and gate in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.delta.triton.parts import L2_EPSILON, Rates, Summands, read, read_gates, silu
from zse.kernels.triton.parts import GROUP, store_activations, to_bf16


@triton.jit
def convolve_token(
    inputs, ring, convolution, row, channel, position, channels, TAPS: tl.constexpr
):  # fmt: skip
    """Return SiLU of the convolution of some channels of one token, and keep the token's own.

    The ring has a line for each of the last TAPS tokens, that of position p at p % TAPS: what is
    written now is read by nobody before the next step, so several programs may share channels.
    """
    inside = channel >= 0
    age = tl.zeros(channel.shape, tl.int32) + position  # a tile: the interpreter's masks need one
    newest = read(inputs, row, channel, inside)
    total = newest * tl.load(convolution + channel * TAPS + TAPS - 1)
    for back in tl.static_range(1, TAPS):
        line = ring + ((position + TAPS - back) % TAPS) * channels
        past = tl.load(line + channel, mask=age >= back, other=0.0)
        total += past * tl.load(convolution + channel * TAPS + TAPS - 1 - back)
    tl.store(ring + (position % TAPS) * channels + channel, newest)
    return silu(total)


@triton.jit
def delta_decode(
    inputs, gates, convolution, decay, step_bias, norm, positions, slots, rings, states,
    outputs, scales, sums,
    input_rows, input_splits, gate_rows, gate_splits, key_heads, value_heads, epsilon,
    DIM: tl.constexpr, TAPS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Move one head's state one token on and store its normed and gated output.

    Program: (row, value head). The state, by far the most bytes, is read and written once; reading
    begins before the previous kernel has ended, which has nothing to do with it.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    keys, wide = tl.arange(0, DIM), tl.arange(0, DIM)
    at = states + (slot * value_heads + head) * (DIM * DIM)
    at += keys[:, None] * DIM + wide[None, :]
    began = (tl.zeros((DIM, DIM), tl.int32) + position) > 0
    state = tl.load(at, mask=began, other=0.0)
    weight = tl.load(norm + wide)
    if PDL:
        tl.extra.cuda.gdc_wait()

    key_columns, key_head = key_heads * DIM, head // (value_heads // key_heads)
    channels = 2 * key_columns + value_heads * DIM
    projected = Summands(inputs, input_rows, input_splits, channels + value_heads * DIM)
    ring = rings + slot * TAPS * channels
    first = key_head * DIM
    query = convolve_token(
        projected, ring, convolution, row, first + keys, position, channels, TAPS
    )
    key = convolve_token(
        projected, ring, convolution, row, key_columns + first + keys, position, channels, TAPS
    )
    value = convolve_token(
        projected, ring, convolution, row, 2 * key_columns + head * DIM + wide, position,
        channels, TAPS,
    )  # fmt: skip
    query, key = to_unit_length(query, key, DIM)
    steps = Summands(gates, gate_rows, gate_splits, 2 * value_heads)
    line = row + tl.zeros((1,), tl.int64)
    log_decay, beta = read_gates(steps, Rates(decay, step_bias), line, line >= 0, head, value_heads)

    state, mixed = move_on(state, query, key, value, log_decay, beta)
    tl.store(at, state)
    mixed = mixed * tl.rsqrt(tl.sum(mixed * mixed, axis=0) / DIM + epsilon) * weight
    mixed *= silu(read(projected, row, channels + head * DIM + wide, wide >= 0))
    store_head(mixed, outputs, scales, sums, row, head, value_heads, DIM, PLAIN)


@triton.jit
def to_unit_length(query, key, DIM: tl.constexpr):
    query = query * tl.rsqrt(tl.sum(query * query, axis=0) + L2_EPSILON) * (DIM**-0.5)
    key = key * tl.rsqrt(tl.sum(key * key, axis=0) + L2_EPSILON)
    return query, key


@triton.jit
def move_on(state, query, key, value, log_decay, beta):
    """Return a state behind one more token, and what its query finds there."""
    state = state * tl.exp(log_decay)[:, None]
    known = tl.sum(state * key[:, None], axis=0)
    state += key[:, None] * ((value - known) * beta)[None, :]
    return state, tl.sum(state * query[:, None], axis=0)


@triton.jit
def store_head(
    values, outputs, scales, sums, row, head, heads, DIM: tl.constexpr, PLAIN: tl.constexpr
):
    """Store [DIM] values of one head: int8 where a head is a group of activations, or 16 bits."""
    first = (row * heads + head) * DIM
    if outputs.dtype.element_ty == tl.int8:
        columns = tl.arange(0, GROUP)[None, :]
        groups = tl.arange(0, 1)
        store_activations(
            tl.reshape(values, (1, GROUP)),
            outputs + first,
            scales + first // GROUP,
            sums + first // GROUP,
            columns,
            groups,
            columns >= 0,
            groups >= 0,
        )
    else:
        tl.store(outputs + first + tl.arange(0, DIM), to_bf16(values, PLAIN))
