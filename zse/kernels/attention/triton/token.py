"""The query, the key and the value of one new token, for the decode attention.

Everything is loaded together, by every program: one trip to memory is dearer than the few bytes
that most programs do not need.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.rope_store.triton.heads import (
    head_norm_factor,
    line_of,
    load_halves,
    load_pairs,
    rotate,
    turn_heads,
    write_columns,
    write_halves,
)
from zse.kernels.triton.parts import to_bf16


class Token(NamedTuple):
    """One new token's query heads, key and value, float32.

    Query and key are halves, because dimension i turns with dimension i + D / 2.
    """

    q_first: tl.tensor
    """[HEADS, D / 2]."""
    q_second: tl.tensor
    k_first: tl.tensor
    """[1, D / 2]."""
    k_second: tl.tensor
    value: tl.tensor
    """[1, D]."""


class Places(NamedTuple):
    """Where a ``Token`` lies in a row of the joined product: int32 offsets and their masks.

    Second halves lie ``SHIFT`` columns behind their offsets: D / 2 where the offsets are those of
    the first halves, 0 where they have offsets of their own.
    """

    q_mask: tl.tensor
    """[HEADS, D / 2]."""
    k_mask: tl.tensor
    """[1, D / 2]."""
    v_mask: tl.tensor
    """[1, D]."""
    q: tl.tensor
    k: tl.tensor
    v: tl.tensor
    q_second: tl.tensor
    k_second: tl.tensor


@triton.jit
def token_places(
    heads, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, WIDTH: tl.constexpr
):
    """Return the ``Places`` of these heads."""
    head = tl.arange(0, HEADS)
    column = tl.arange(0, HALF_PAD)
    inside = column < HEAD_DIM // 2
    wide = tl.arange(0, WIDTH)[None, :]
    q_mask = (head < heads.group)[:, None] & inside[None, :]
    k_mask = inside[None, :]
    v_mask = wide < HEAD_DIM
    q = (heads.kv_head * heads.group + head)[:, None] * HEAD_DIM + column[None, :]
    k = (heads.num_heads + heads.kv_head) * HEAD_DIM + column[None, :]
    v = (heads.num_heads + heads.kv_heads + heads.kv_head) * HEAD_DIM + wide
    return Places(q_mask, k_mask, v_mask, q, k, v, q, k)


@triton.jit
def load_biases(bias, places, has_bias, SHIFT: tl.constexpr):
    """Return the bias of a token's heads as a ``Token``, zeros where there is none."""
    if has_bias != 0:
        q_first = tl.load(bias + places.q, mask=places.q_mask, other=0.0)
        q_second = tl.load(bias + places.q_second + SHIFT, mask=places.q_mask, other=0.0)
        k_first = tl.load(bias + places.k, mask=places.k_mask, other=0.0)
        k_second = tl.load(bias + places.k_second + SHIFT, mask=places.k_mask, other=0.0)
        value = tl.load(bias + places.v, mask=places.v_mask, other=0.0)
    else:
        q_first = tl.zeros(places.q.shape, tl.float32)
        q_second = tl.zeros(places.q.shape, tl.float32)
        k_first = tl.zeros(places.k.shape, tl.float32)
        k_second = tl.zeros(places.k.shape, tl.float32)
        value = tl.zeros(places.v.shape, tl.float32)
    return Token(q_first, q_second, k_first, k_second, value)


@triton.jit
def load_two(line, other, offsets, mask, second_exists):
    """Return two summands of a tile, the second one zero where it does not exist."""
    second_mask = mask & ((tl.zeros(offsets.shape, tl.int32) + second_exists) > 0)
    first = tl.load(line + offsets, mask=mask, other=0.0)
    return first, tl.load(other + offsets, mask=second_mask, other=0.0)


@triton.jit
def add_summands(token, places, qkv, row, rows, splits, all_columns, SHIFT: tl.constexpr):
    """Return the token with the summands of the joined product added in order.

    Two of each are in flight at once.

    Args:
        token: What they are added to.
        places: Where in a row they lie.
        qkv: Address of float32 [splits, rows, all_columns].
        row: int64.
        rows: Rows of a summand.
        splits: Summands.
        all_columns: Of a row.
        SHIFT: See ``Places``.
    """
    line = qkv + row * all_columns
    stride = rows.to(tl.int64) * all_columns
    q_first, q_second, k_first, k_second, value = token
    for index in range(0, splits, 2):
        other = line + stride
        more = (splits > index + 1).to(tl.int32)
        q_first_0, q_first_1 = load_two(line, other, places.q, places.q_mask, more)
        q_second_0, q_second_1 = load_two(
            line + SHIFT, other + SHIFT, places.q_second, places.q_mask, more
        )
        k_first_0, k_first_1 = load_two(line, other, places.k, places.k_mask, more)
        k_second_0, k_second_1 = load_two(
            line + SHIFT, other + SHIFT, places.k_second, places.k_mask, more
        )
        value_0, value_1 = load_two(line, other, places.v, places.v_mask, more)
        q_first = q_first + q_first_0 + q_first_1
        q_second = q_second + q_second_0 + q_second_1
        k_first = k_first + k_first_0 + k_first_1
        k_second = k_second + k_second_0 + k_second_1
        value = value + value_0 + value_1
        line = other + stride
    return Token(q_first, q_second, k_first, k_second, value)


@triton.jit
def turn(
    first,
    second,
    norm,
    angles,
    rotary_half,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    FAMILY: tl.constexpr,
):
    """Normalize heads [H, D / 2] where the model does, then rotate them; halves in, halves out."""
    cosines, sines = angles
    if HEAD_NORM:
        factor = head_norm_factor(first, second, epsilon, HEAD_DIM)
        if FAMILY:
            norm_first, norm_second = load_pairs(norm, rotary_half, HEAD_DIM, first.shape[1])
        else:
            norm_first, norm_second = load_halves(norm, HEAD_DIM // 2, first.shape[1])
        first *= factor * norm_first
        second *= factor * norm_second
    first, second = rotate(first, second, cosines, sines)
    return first, second


@triton.jit
def normalize_value(value, family, HEAD_DIM: tl.constexpr):
    """Return the value [1, D] divided by its rms, where the model does so."""
    if family.norms_values != 0:
        squares = tl.sum(value * value, axis=1)[:, None]
        value = value * tl.rsqrt(squares / HEAD_DIM + family.value_epsilon)
    return value


@triton.jit
def rotate_token(
    token,
    q_norm,
    k_norm,
    angles,
    family,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    FAMILY: tl.constexpr,
):
    """Return the token with query and key normalized, where the model does, and rotated.

    Args:
        token: As the joined product has it.
        q_norm: Address of the norm of queries.
        k_norm: The same of keys.
        angles: Cosines and sines [1, D / 2].
        family: ``Family``, looked at where FAMILY says so.
        epsilon: Of the norms.
        HEAD_DIM: D.
        HEAD_NORM: Whether there are norms.
        FAMILY: Whether columns are in the order of ``pair_columns``, and values may have a norm.
    """
    rotary_half = family.rotary_half if FAMILY else HEAD_DIM // 2
    value = normalize_value(token.value, family, HEAD_DIM) if FAMILY else token.value
    q_first, q_second = turn(
        token.q_first, token.q_second, q_norm, angles, rotary_half, epsilon,
        HEAD_DIM, HEAD_NORM, FAMILY,
    )  # fmt: skip
    k_first, k_second = turn(
        token.k_first, token.k_second, k_norm, angles, rotary_half, epsilon,
        HEAD_DIM, HEAD_NORM, FAMILY,
    )  # fmt: skip
    return Token(q_first, q_second, k_first, k_second, value)


@triton.jit
def balance_token(
    token, places, key_factors, has_factors, first_key,
    HEAD_DIM: tl.constexpr, SHIFT: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Return the rotated token with its key divided by factors, and its queries multiplied.

    Args:
        token: Rotated.
        places: Where it lies in the joined product, whose keys start at head ``first_key``.
        key_factors: Address of float32 [kv_heads, D].
        has_factors: Whether there are any.
        first_key: int32.
        HEAD_DIM: D.
        SHIFT: See ``Places``.
        QUANTIZED: Whether the cache is int8; there are no factors else.
    """
    q_first, q_second, k_first, k_second, value = token
    if QUANTIZED:  # noqa: SIM102 - known when the kernel is compiled
        if has_factors != 0:
            inside = (tl.arange(0, places.k.shape[1]) < HEAD_DIM // 2)[None, :]
            line = key_factors - first_key * HEAD_DIM
            first = tl.load(line + places.k, mask=inside, other=1.0)
            second = tl.load(line + places.k_second + SHIFT, mask=inside, other=1.0)
            q_first = q_first * first
            q_second = q_second * second
            k_first = k_first * (1.0 / first)
            k_second = k_second * (1.0 / second)
    return Token(q_first, q_second, k_first, k_second, value)


@triton.jit
def turn_token(token, NARROW: tl.constexpr):
    """Return the token with queries and key turned, where a cache of four bits is asked."""
    q_first, q_second = turn_heads(token.q_first, token.q_second, NARROW)
    k_first, k_second = turn_heads(token.k_first, token.k_second, NARROW)
    return Token(q_first, q_second, k_first, k_second, token.value)


@triton.jit
def scale_query(token, scale, PLAIN: tl.constexpr):
    """Return the halves of the scaled query [HEADS, D / 2] as bfloat16."""
    return to_bf16(token.q_first * scale, PLAIN), to_bf16(token.q_second * scale, PLAIN)


@triton.jit
def write_token(token, places, owner, context, block, HEAD_DIM: tl.constexpr, PLAIN: tl.constexpr):
    """Write the new key and value where ``owner`` is 1; return the token as the cache holds it.

    Args:
        token: Rotated.
        places: Its masks say what exists.
        owner: int32, 1 in the one program that writes, else 0.
        context: ``Context`` that the token comes after.
        block: int64, the block of the cache for the token.
        HEAD_DIM: D.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.
    """
    owns = tl.zeros((1, 1), tl.int32) + owner > 0
    line = line_of(block, context.end, context.heads.kv_head, context.heads.kv_heads)
    lines = line + tl.zeros((1,), tl.int64)
    k_mask = places.k_mask & owns
    v_mask = places.v_mask & owns
    k_first, k_second = write_halves(
        context.key_cache, token.k_first, token.k_second, lines, k_mask, HEAD_DIM, PLAIN
    )
    value = write_columns(context.value_cache, token.value, lines, v_mask, 0, HEAD_DIM, PLAIN)
    return Token(token.q_first, token.q_second, k_first, k_second, value)
