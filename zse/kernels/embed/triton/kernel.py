"""Rows of the embedding, from any scheme that a file stores."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import NF4_VALUES, high_half, look_up, low_half, wait_for_inputs


@triton.jit
def load_packed_codes(line, columns, mask, GROUP_SIZE: tl.constexpr):
    """Return 4-bit codes: byte b of a group holds code b low and code b + GROUP_SIZE / 2 high."""
    within = columns % GROUP_SIZE
    half: tl.constexpr = GROUP_SIZE // 2
    byte = columns // GROUP_SIZE * half + within % half
    packed = tl.load(line + byte, mask=mask, other=0).to(tl.int32)
    return tl.where(within >= half, packed >> 4, packed & 15)


@triton.jit
def load_row(weights, scales, token, hidden, columns, mask, SCHEME: tl.constexpr, GROUP_SIZE):
    """Return float32 values of some columns of one row of the table."""
    if SCHEME == "plain":
        line = weights + token * hidden
        values = tl.load(line + columns, mask=mask, other=0.0).to(tl.float32)
    elif SCHEME == "int8":
        line = weights + token * hidden
        scale = tl.load(scales + token)
        values = tl.load(line + columns, mask=mask, other=0).to(tl.float32) * scale
    else:
        codes = load_packed_codes(weights + token * (hidden // 2), columns, mask, GROUP_SIZE)
        at = token * (hidden // GROUP_SIZE) + columns // GROUP_SIZE
        scale = tl.load(scales + at, mask=mask, other=0)
        if SCHEME == "int4":
            low = low_half(scale)
            high = high_half(scale)
            values = codes.to(tl.float32) * low + high
        else:
            values = look_up(codes, NF4_VALUES) * scale.to(tl.float32)
    return values


@triton.jit
def token_of(tokens, slots, last_tokens, row):
    """Return a row's token: a negative one stands for the last that was sampled in its slot."""
    token = tl.load(tokens + row)
    if token < 0:
        token = tl.load(last_tokens + tl.load(slots + row))
    return token.to(tl.int64)


@triton.jit
def store_row(
    weights, scales, tokens, slots, last_tokens, residual, hidden, factor,
    SCHEME: tl.constexpr, GROUP_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store one chunk of one embedding row times a factor, float32. Program: (row, chunk)."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    token = token_of(tokens, slots, last_tokens, row)
    values = load_row(weights, scales, token, hidden, columns, mask, SCHEME, GROUP_SIZE)
    tl.store(residual + row * hidden + columns, values * factor, mask=mask)


@triton.jit
def embed(
    weights, scales, tokens, slots, last_tokens, residual, hidden,
    SCHEME: tl.constexpr, GROUP_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store rows as they are; see ``store_row``."""
    store_row(weights, scales, tokens, slots, last_tokens, residual, hidden, 1.0,
              SCHEME, GROUP_SIZE, BLOCK, PDL)  # fmt: skip


@triton.jit
def embed_scaled(
    weights, scales, tokens, slots, last_tokens, residual, hidden, scale,
    SCHEME: tl.constexpr, GROUP_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store rows times ``scale``; see ``store_row``."""
    store_row(weights, scales, tokens, slots, last_tokens, residual, hidden, scale,
              SCHEME, GROUP_SIZE, BLOCK, PDL)  # fmt: skip


@triton.jit
def embed_placed(
    weights, scales, tokens, slots, last_tokens, residual,
    positions, prefill_positions, types, position_rows, type_rows,
    hidden, scale, decode_rows, first_position, has_positions, has_types, tells_types,
    SCHEME: tl.constexpr, GROUP_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store rows times ``scale``, and what they have by their position and by their type.

    Program: (row, chunk). Positions of the first rows lie apart from those of the others.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    token = token_of(tokens, slots, last_tokens, row)
    values = load_row(weights, scales, token, hidden, columns, mask, SCHEME, GROUP_SIZE) * scale
    if has_positions != 0:
        is_decode = row < decode_rows
        position = tl.load(positions + row, mask=is_decode, other=0)
        position += tl.load(prefill_positions + row - decode_rows, mask=row >= decode_rows, other=0)
        line = position_rows + (position + first_position).to(tl.int64) * hidden
        values += tl.load(line + columns, mask=mask, other=0.0)
    if has_types != 0:
        kind = tl.load(types + row, mask=tells_types != 0, other=0).to(tl.int64)
        values += tl.load(type_rows + kind * hidden + columns, mask=mask, other=0.0)
    tl.store(residual + row * hidden + columns, values, mask=mask)
