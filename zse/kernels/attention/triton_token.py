"""The query, the key and the value of one new token, for the decode attention.

Everything is loaded together, by every program: one trip to memory is dearer than the few bytes
that most programs do not need.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.norm.triton_parts import to_bf16
from zse.kernels.rope_store.triton_heads import encode, head_norm_factor, rotate, write_half


@triton.jit
def load_halves(weight, column, inside, HALF: tl.constexpr):
    """Return both halves of a head's vector as [1, D / 2]."""
    first = tl.load(weight + column, mask=inside, other=0.0)[None, :]
    return first, tl.load(weight + HALF + column, mask=inside, other=0.0)[None, :]


@triton.jit
def load_biases(bias, q_at, k_at, v_at, q_mask, k_mask, v_mask, has_bias, HALF: tl.constexpr):
    """Return the bias of queries (two halves), of the key (two halves) and of the value."""
    if has_bias != 0:
        q_first = tl.load(bias + q_at, mask=q_mask, other=0.0)
        q_second = tl.load(bias + q_at + HALF, mask=q_mask, other=0.0)
        k_first = tl.load(bias + k_at, mask=k_mask, other=0.0)
        k_second = tl.load(bias + k_at + HALF, mask=k_mask, other=0.0)
        value = tl.load(bias + v_at, mask=v_mask, other=0.0)
    else:
        q_first = tl.zeros(q_at.shape, tl.float32)
        q_second = tl.zeros(q_at.shape, tl.float32)
        k_first = tl.zeros(k_at.shape, tl.float32)
        k_second = tl.zeros(k_at.shape, tl.float32)
        value = tl.zeros(v_at.shape, tl.float32)
    return q_first, q_second, k_first, k_second, value


@triton.jit
def load_two(line, other, offsets, mask, second_exists):
    """Return two summands of a tile, the second one zero where it does not exist."""
    second_mask = mask & ((tl.zeros(offsets.shape, tl.int32) + second_exists) > 0)
    first = tl.load(line + offsets, mask=mask, other=0.0)
    return first, tl.load(other + offsets, mask=second_mask, other=0.0)


@triton.jit
def add_parts(
    line,
    stride,
    splits,
    q_at,
    k_at,
    v_at,
    q_mask,
    k_mask,
    v_mask,
    q_first,
    q_second,
    k_first,
    k_second,
    value,
    HALF: tl.constexpr,
):
    """Add the summands of queries, key and value in order, two of each in flight at once."""
    for index in range(0, splits, 2):
        other = line + stride
        more = (splits > index + 1).to(tl.int32)
        q_first_0, q_first_1 = load_two(line, other, q_at, q_mask, more)
        q_second_0, q_second_1 = load_two(line + HALF, other + HALF, q_at, q_mask, more)
        k_first_0, k_first_1 = load_two(line, other, k_at, k_mask, more)
        k_second_0, k_second_1 = load_two(line + HALF, other + HALF, k_at, k_mask, more)
        value_0, value_1 = load_two(line, other, v_at, v_mask, more)
        q_first = q_first + q_first_0 + q_first_1
        q_second = q_second + q_second_0 + q_second_1
        k_first = k_first + k_first_0 + k_first_1
        k_second = k_second + k_second_0 + k_second_1
        value = value + value_0 + value_1
        line = other + stride
    return q_first, q_second, k_first, k_second, value


@triton.jit
def turn(
    first,
    second,
    norm,
    cosines,
    sines,
    column,
    inside,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HEAD_NORM: tl.constexpr,
):
    """Normalize heads where the model does, then rotate them; halves in, halves out."""
    if HEAD_NORM:
        factor = head_norm_factor(first, second, epsilon, HEAD_DIM)
        norm_first, norm_second = load_halves(norm, column, inside, HEAD_DIM // 2)
        first *= factor * norm_first
        second *= factor * norm_second
    first, second = rotate(first, second, cosines, sines)
    return first, second


@triton.jit
def write_token(
    k_first,
    k_second,
    value,
    keys,
    values,
    key_scales,
    value_scales,
    lines,
    column,
    k_mask,
    v_mask,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Write the new key and value where the masks say; return them as the cache holds them."""
    half: tl.constexpr = HEAD_DIM // 2
    quantized: tl.constexpr = keys.dtype.element_ty == tl.int8
    columns = column[None, :]
    wide = tl.arange(0, WIDTH)[None, :]
    stored, scales, k_first = encode(k_first, quantized, PLAIN)
    write_half(keys, key_scales, stored, scales, lines, columns, k_mask, 0, HEAD_DIM, quantized)
    stored, scales, k_second = encode(k_second, quantized, PLAIN)
    write_half(keys, key_scales, stored, scales, lines, columns, k_mask, half, HEAD_DIM, quantized)
    stored, scales, value = encode(value, quantized, PLAIN)
    write_half(values, value_scales, stored, scales, lines, wide, v_mask, 0, HEAD_DIM, quantized)
    return k_first, k_second, value


@triton.jit
def scale_query(first, second, scale, PLAIN: tl.constexpr):
    """Return the halves of scaled queries as bfloat16."""
    return to_bf16(first * scale, PLAIN), to_bf16(second * scale, PLAIN)
