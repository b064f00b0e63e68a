"""NF4, NL4 and MXFP4 in the matrix kernels: values in eight bits, and PTX that looks codes up.

A byte permute reads four codes at once, but three bits of a code choose in a table of eight bytes.
So two permutes look in the two halves of a table of sixteen, and a third chooses between what they
found by the fourth bit. Everything derives from the values that the file format fixes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from zse.format.mxfp4 import MXFP4_CODES
from zse.format.nf4 import NF4_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

NF4_INT8_SCALE = 112.03021780975463
"""Steps of int8 in 1.0: the scale that leaves the smallest error, 0.33% of the values."""
NF4_INT8 = tuple(round(value * NF4_INT8_SCALE) for value in NF4_CODES)
"""The int8 values that stand for NF4 codes where activations are int8."""
MXFP4_INT8_SCALE = 2
"""Steps of int8 in 1.0: the values of MXFP4 are whole numbers of halves."""
MXFP4_INT8 = tuple(round(value * MXFP4_INT8_SCALE) for value in MXFP4_CODES)


def _bfloat16_bits(value: float) -> int:
    """Return a value rounded to the nearest bfloat16, as its 16 bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _first_codes(word: str) -> str:
    """Return PTX that readies the low four codes of ``word`` for ``_look_up``.

    Register s gets three bits of each code, m the choice between the halves by its fourth bit.
    """
    return (
        f"and.b32 s, {word}, 0x77777777; shr.u32 m, {word}, 1; "
        "and.b32 m, m, 0x44444444; or.b32 m, m, 0x32103210; "
    )


_NEXT_CODES = "shr.u32 s, s, 16; shr.u32 m, m, 16; "
"""PTX that readies the high four codes of the word after its low four."""


def _look_up(found: str, table: Sequence[int]) -> str:
    """Return PTX that puts four bytes of ``table`` into ``found``, by the codes in s and m.

    Args:
        found: A register.
        table: A byte for each of the sixteen codes, signed or not.
    """
    data = struct.pack("<16B", *(byte & 0xFF for byte in table))
    words = [f"0x{word:08X}" for word in struct.unpack("<4I", data)]
    return (
        f"prmt.b32 a, {words[0]}, {words[1]}, s; prmt.b32 b, {words[2]}, {words[3]}, s; "
        f"prmt.b32 {found}, a, b, m; "
    )


def _scaled_pairs(values: Sequence[float], low: tuple[str, str], high: tuple[str, str]) -> str:
    """Return PTX that puts scaled bfloat16 values of four codes into two registers.

    Args:
        values: What the sixteen codes stand for.
        low: The register for the low codes of two bytes, and that of their scales: two bfloat16,
            one for each byte.
        high: The same for the high codes.
    """
    bits = [_bfloat16_bits(value) for value in values]
    return (
        _look_up("l", [value & 0xFF for value in bits])
        + _look_up("h", [value >> 8 for value in bits])
        + f"prmt.b32 a, l, h, 0x6240; fma.rn.bf16x2 {low[0]}, a, {low[1]}, none; "
        + f"prmt.b32 a, l, h, 0x7351; fma.rn.bf16x2 {high[0]}, a, {high[1]}, none; "
    )


def int8_of_words(table: Sequence[int]) -> str:
    """Return PTX: $0 and $1 become int8 values of the low and the high four codes of $2."""
    return (
        "{ .reg .b32 s, m, a, b; "
        + _first_codes("$2")
        + _look_up("$0", table)
        + _NEXT_CODES
        + _look_up("$1", table)
        + "}"
    )


def int8_of_bytes(table: Sequence[int]) -> str:
    """Return PTX: $0 and $1 become int8 values of the low and the high codes of the bytes in $2."""
    return (
        "{ .reg .b32 s, m, a, b, f, l; "
        + _first_codes("$2")
        + _look_up("f", table)
        + _NEXT_CODES
        + _look_up("l", table)
        + "prmt.b32 $0, f, l, 0x6420; prmt.b32 $1, f, l, 0x7531; }"
    )


def bfloat16_of_bytes(values: Sequence[float], *, in_pairs: bool = False) -> str:
    """Return PTX that multiplies values by scales, in bfloat16.

    $0 and $1 become values of the low codes of the four bytes in $4, times the scales in $5 and $6;
    $2 and $3 those of the high codes, times the same, or those in $7 and $8 where low and high
    codes are of two groups ``in_pairs``.
    """
    high = ("$7", "$8") if in_pairs else ("$5", "$6")
    return (
        "{ .reg .b32 s, m, a, b, l, h, none; mov.b32 none, 0x80008000; "
        + _first_codes("$4")
        + _scaled_pairs(values, ("$0", "$5"), ("$2", high[0]))
        + _NEXT_CODES
        + _scaled_pairs(values, ("$1", "$6"), ("$3", high[1]))
        + "}"
    )
