"""The query, the key and the value of one new token, for the decode attention."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.norm.triton_parts import sum_partials, to_bf16
from zse.kernels.rope_store.triton_heads import (
    encode,
    head_norm_factor,
    load_bias,
    rotate,
    write_half,
)


@triton.jit
def load_halves(weight, column, inside, HALF: tl.constexpr):
    """Return both halves of a head's vector as [1, D / 2]."""
    first = tl.load(weight + column, mask=inside, other=0.0)[None, :]
    return first, tl.load(weight + HALF + column, mask=inside, other=0.0)[None, :]


@triton.jit
def load_query(
    line,
    stride,
    splits,
    bias_first,
    bias_second,
    offsets,
    mask,
    q_norm,
    cosines,
    sines,
    column,
    inside,
    scale,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Return the halves of a group's queries, rotated and scaled, as bfloat16 [HEADS, D / 2]."""
    half: tl.constexpr = HEAD_DIM // 2
    first = sum_partials(line, offsets, mask, splits, stride) + bias_first
    second = sum_partials(line + half, offsets, mask, splits, stride) + bias_second
    if HEAD_NORM:
        factor = head_norm_factor(first, second, epsilon, HEAD_DIM)
        norm_first, norm_second = load_halves(q_norm, column, inside, half)
        first *= factor * norm_first
        second *= factor * norm_second
    first, second = rotate(first, second, cosines, sines)
    return to_bf16(first * scale, PLAIN), to_bf16(second * scale, PLAIN)


@triton.jit
def write_new_token(
    line,
    stride,
    splits,
    bias,
    has_bias,
    k_norm,
    cosines,
    sines,
    column,
    inside,
    num_heads,
    kv_head,
    kv_heads,
    keys,
    values,
    key_scales,
    value_scales,
    lines,
    epsilon,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Make the new key and value, write them to the cache, return them as the cache holds them.

    Returns:
        Halves of the key [1, D / 2], and the value [1, WIDTH].
    """
    half: tl.constexpr = HEAD_DIM // 2
    quantized: tl.constexpr = keys.dtype.element_ty == tl.int8
    columns = column[None, :]
    mask = inside[None, :]
    offsets = (num_heads + kv_head) * HEAD_DIM + columns
    first = sum_partials(line, offsets, mask, splits, stride)
    second = sum_partials(line + half, offsets, mask, splits, stride)
    first += load_bias(bias, offsets, mask, has_bias)
    second += load_bias(bias + half, offsets, mask, has_bias)
    wide = tl.arange(0, WIDTH)[None, :]
    v_mask = wide < HEAD_DIM
    v_offsets = (num_heads + kv_heads + kv_head) * HEAD_DIM + wide
    value = sum_partials(line, v_offsets, v_mask, splits, stride)
    value += load_bias(bias, v_offsets, v_mask, has_bias)
    if HEAD_NORM:
        factor = head_norm_factor(first, second, epsilon, HEAD_DIM)
        norm_first, norm_second = load_halves(k_norm, column, inside, half)
        first *= factor * norm_first
        second *= factor * norm_second
    first, second = rotate(first, second, cosines, sines)
    stored, scales, first = encode(first, quantized, PLAIN)
    write_half(keys, key_scales, stored, scales, lines, columns, mask, 0, HEAD_DIM, quantized)
    stored, scales, second = encode(second, quantized, PLAIN)
    write_half(keys, key_scales, stored, scales, lines, columns, mask, half, HEAD_DIM, quantized)
    stored, scales, value = encode(value, quantized, PLAIN)
    write_half(values, value_scales, stored, scales, lines, wide, v_mask, 0, HEAD_DIM, quantized)
    return first, second, value
