"""Parts of kernels that several operations share."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.format.nf4 import NF4_CODES
from zse.kernels.layout import ACTIVATION_GROUP

GROUP = tl.constexpr(ACTIVATION_GROUP)
NF4_VALUES = tl.constexpr(NF4_CODES)
ROUNDING_SHIFT = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it leaves no bits below the point


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Where kernels overlap, let the next one start, and wait for what the one before wrote."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def sum_partials(values, offsets, mask, splits, split_stride):
    """Add the summands of a split matrix product in order; four loads are in flight at once."""
    total = tl.zeros(offsets.shape, tl.float32)
    count = tl.zeros(offsets.shape, tl.int32) + splits  # a tile: the interpreter's masks need one
    base = values
    for first in range(0, splits, 4):
        second = base + split_stride
        third = second + split_stride
        fourth = third + split_stride
        part_0 = tl.load(base + offsets, mask=mask, other=0.0)
        part_1 = tl.load(second + offsets, mask=mask & (count > first + 1), other=0.0)
        part_2 = tl.load(third + offsets, mask=mask & (count > first + 2), other=0.0)
        part_3 = tl.load(fourth + offsets, mask=mask & (count > first + 3), other=0.0)
        total += part_0.to(tl.float32)
        total += part_1.to(tl.float32)
        total += part_2.to(tl.float32)
        total += part_3.to(tl.float32)
        base = fourth + split_stride
    return total


@triton.jit
def sum_two_partials(left, right, offsets, mask, splits, split_stride):
    """Add the summands of two tiles in order; two loads of each are in flight at once."""
    left_total = tl.zeros(offsets.shape, tl.float32)
    right_total = tl.zeros(offsets.shape, tl.float32)
    count = tl.zeros(offsets.shape, tl.int32) + splits  # a tile: the interpreter's masks need one
    for first in range(0, splits, 2):
        later = mask & (count > first + 1)
        left_0 = tl.load(left + offsets, mask=mask, other=0.0)
        right_0 = tl.load(right + offsets, mask=mask, other=0.0)
        left_1 = tl.load(left + split_stride + offsets, mask=later, other=0.0)
        right_1 = tl.load(right + split_stride + offsets, mask=later, other=0.0)
        left_total = left_total + left_0.to(tl.float32) + left_1.to(tl.float32)
        right_total = right_total + right_0.to(tl.float32) + right_1.to(tl.float32)
        left += 2 * split_stride
        right += 2 * split_stride
    return left_total, right_total


@triton.jit
def load_bias(bias, offsets, mask, has_bias):
    """Return a tile of the bias, or zeros when there is none."""
    wanted = (tl.zeros(offsets.shape, tl.int32) + has_bias) > 0
    return tl.load(bias + offsets, mask=mask & wanted, other=0.0)


@triton.jit
def low_half(pair):
    """Return the float16 in the low 16 bits of int32 words, as float32."""
    return (pair & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high_half(pair):
    """Return the float16 in the high 16 bits of int32 words, as float32."""
    return (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def look_up(code, TABLE: tl.constexpr):
    """Return the entries of a table of sixteen for codes 0..15, float32."""
    value = tl.zeros(code.shape, tl.float32)
    for index in tl.static_range(16):
        value = tl.where(code == index, TABLE[index], value)
    return value


@triton.jit
def round_to_even(values):
    """Round float32 of magnitude below 2**22 to the nearest integer, halves to even."""
    return (values + ROUNDING_SHIFT) - ROUNDING_SHIFT


@triton.jit
def to_bf16(values, PLAIN: tl.constexpr):
    """Round float32 to bfloat16, halves to even; the interpreter itself would cut bits off."""
    if PLAIN:
        bits = values.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        values = (bits & -65536).to(tl.float32, bitcast=True)
    return values.to(tl.bfloat16)


@triton.jit
def quantize_last(values):
    """Return int8 codes of [..., W], and the scale and the sum of codes over the last dimension."""
    largest = tl.max(tl.abs(values), axis=len(values.shape) - 1)
    inverse = 127.0 / tl.where(largest > 0.0, largest, 1.0)  # zeros stay zeros
    codes = round_to_even(values * tl.expand_dims(inverse, len(values.shape) - 1))
    return codes.to(tl.int8), largest / 127.0, tl.sum(codes, axis=len(values.shape) - 1)


@triton.jit
def store_activations(values, outputs, scales, sums, columns, groups, inside, kept):
    """Store a tile [G, 128]: int8 codes with scale and sum a group, or plain 16-bit values.

    Args:
        values: float32 [G, 128].
        outputs: Address of the row: int8 or bfloat16, which decides what is stored.
        scales: Address of the row's scales; used for int8.
        sums: Address of the row's sums; used for int8.
        columns: [G, 128] column of each value.
        groups: [G] group of each row of the tile.
        inside: [G, 128] which columns exist.
        kept: [G] which groups exist.
    """
    if outputs.dtype.element_ty == tl.int8:
        codes, scale, total = quantize_last(values)
        tl.store(outputs + columns, codes, mask=inside)
        tl.store(scales + groups, scale, mask=kept)
        tl.store(sums + groups, scale * total, mask=kept)
    else:
        tl.store(outputs + columns, values.to(outputs.dtype.element_ty), mask=inside)
