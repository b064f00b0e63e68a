"""What the attention of some families has besides: sinks, gates, other rows of the product."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.attention.triton.parts import LOG2_E, NOTHING, Softmax
from zse.kernels.attention.triton.token import Places, token_places
from zse.kernels.rope_store.triton.heads import load_angles, load_halves, pair_columns
from zse.kernels.triton.parts import load_bias, sum_partials


class Family(NamedTuple):
    """Numbers of ``layout.HeadShape`` and ``layout.HeadInputs`` that are not the usual ones."""

    joined_heads: tl.tensor
    """Heads of a row of the joined product."""
    first_key: tl.tensor
    """Head of the joined product at which keys start."""
    first_value: tl.tensor
    stores: tl.tensor
    """0: another layer has stored the new token's key and value already."""
    rotary_half: tl.tensor
    """Pairs of columns that turn."""
    norms_values: tl.tensor
    value_epsilon: tl.tensor
    has_gates: tl.tensor
    has_sinks: tl.tensor
    sinks: tl.tensor
    """Address of float32 [num_heads]."""
    qkv: tl.tensor
    """Address of float32 [splits, rows, joined_heads * D]."""
    bias: tl.tensor
    rows: tl.tensor
    splits: tl.tensor
    has_bias: tl.tensor


@triton.jit
def family_places(
    heads,
    family,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return the ``Places`` of these heads, queries and keys as ``pair_columns``."""
    head = tl.arange(0, HEADS)
    column = tl.arange(0, HALF_PAD)
    inside = (column < HEAD_DIM // 2)[None, :]
    wide = tl.arange(0, WIDTH)[None, :]
    first, second = pair_columns(column, family.rotary_half, HEAD_DIM)
    query = (heads.kv_head * heads.group + head)[:, None] * HEAD_DIM
    key = (family.first_key + heads.kv_head) * HEAD_DIM
    value = (family.first_value + heads.kv_head) * HEAD_DIM
    own = tl.zeros((1, 1), tl.int32) + family.stores > 0
    return Places(
        (head < heads.group)[:, None] & inside,
        inside & own,
        (wide < HEAD_DIM) & own,
        query + first[None, :],
        key + first[None, :],
        value + wide,
        query + second[None, :],
        key + second[None, :],
    )


@triton.jit
def places_of(
    heads,
    family,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    FAMILY: tl.constexpr,
):
    """Return the ``Places`` of these heads in rows of any kind where FAMILY says so."""
    if FAMILY:
        places = family_places(heads, family, HEADS, HEAD_DIM, HALF_PAD, WIDTH)
    else:
        places = token_places(heads, HEADS, HEAD_DIM, HALF_PAD, WIDTH)
    return places


@triton.jit
def angles_of(
    table, position, family, HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, FAMILY: tl.constexpr
):
    """Return cosines and sines [1, D / 2] of a position; FAMILY: of heads that turn in part."""
    if FAMILY:
        column = tl.arange(0, HALF_PAD)
        angles = load_angles(table, position, column, family.rotary_half)
    else:
        line = table + position.to(tl.int64) * HEAD_DIM
        angles = load_halves(line, HEAD_DIM // 2, HALF_PAD)
    return angles


@triton.jit
def count_sinks(softmax, sinks, has_sinks, head, exists):
    """Return the ``Softmax`` of [H] queries after the sinks of their heads, if there are any.

    Args:
        softmax: Of all tokens.
        sinks: Address of float32 logits, one a head.
        has_sinks: Whether there are any.
        head: int32 [H], the heads.
        exists: [H], which of them there are.
    """
    wanted = exists & (tl.zeros(head.shape, tl.int32) + has_sinks > 0)
    sink = tl.load(sinks + head, mask=wanted, other=NOTHING) * LOG2_E
    largest = tl.maximum(softmax.largest, sink)
    fade = tl.exp2(softmax.largest - largest)
    total = softmax.total * fade + tl.exp2(sink - largest)
    return Softmax(largest, total, softmax.attended * fade[:, None])


@triton.jit
def apply_gates(values, family, row, first_head, num_heads, exists, HEAD_DIM: tl.constexpr):
    """Return values [H, W] times the sigmoid of their gates, where the model has gates.

    Args:
        values: float32, of consecutive query heads.
        family: Where the gates are: in the joined product, after all queries.
        row: int64.
        first_head: Query head of the first row of ``values``.
        num_heads: Query heads there are.
        exists: [H, W] which values there are.
        HEAD_DIM: D.
    """
    if family.has_gates != 0:
        head = tl.arange(0, values.shape[0])[:, None]
        columns = (num_heads + first_head + head) * HEAD_DIM
        columns = columns + tl.arange(0, values.shape[1])[None, :]
        all_columns = family.joined_heads * HEAD_DIM
        line = family.qkv + row * all_columns
        stride = family.rows.to(tl.int64) * all_columns
        gates = sum_partials(line, columns, exists, family.splits, stride)
        gates += load_bias(family.bias, columns, exists, family.has_bias)
        values = values * tl.sigmoid(gates)
    return values
