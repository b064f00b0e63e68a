"""The codecs number by number, in Python: what the kernels are held against."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = 64
RAW, BF16, FP8, INT8, INT4 = range(5)


def single(number: float) -> float:
    """Return a number as float32 has it."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def narrow(number: float) -> int:
    """Return the bits of the bfloat16 that is nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def wide(half: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", half << 16))[0])


def mix(numbers: Sequence[float]) -> list[float]:
    """Return Hadamard's transform of 64 numbers, each sum rounded to float32."""
    mixed, half = list(numbers), 1
    while half < GROUP:
        for start in range(0, GROUP, 2 * half):
            for place in range(start, start + half):
                left, right = mixed[place], mixed[place + half]
                mixed[place], mixed[place + half] = single(left + right), single(left - right)
        half *= 2
    return [single(number * 0.125) for number in mixed]


def _scale(numbers: Sequence[float], limit: float) -> tuple[bytes, float]:
    half = narrow(single(max(map(abs, numbers)) / limit))
    return struct.pack("<H", half), wide(half)


def _whole(number: float, scale: float, limit: int) -> int:
    return round(max(-limit, min(limit, single(number / scale)))) if scale else 0


def _e4m3(number: float) -> int:
    sign, size = (0x80 if math.copysign(1, number) < 0 else 0), abs(number)
    if size >= 448:
        return sign | 0x7E
    if size < 2**-6:
        return sign | round(size * 512)
    exponent = math.frexp(size)[1] - 1
    steps = round(size / 2.0**exponent * 8)  # 8 to 16, where 16 is the next exponent
    return sign | min((exponent + 7) * 8 + steps - 8, 0x7E)


def _from_e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if code & 0x80 else size


def write_row(codec: int, row: Sequence[float]) -> bytes:
    """Return a row of float32 numbers as a codec has it."""
    if codec == RAW:
        return struct.pack(f"<{len(row)}f", *row)
    if codec == BF16:
        return struct.pack(f"<{len(row)}H", *map(narrow, row))
    if codec == FP8:
        head, scale = _scale(row, 448.0)
        return head + bytes(_e4m3(single(number / scale)) if scale else 0 for number in row)
    found = b""
    for first in range(0, len(row), GROUP):
        group = list(row[first : first + GROUP])
        if codec == INT8:
            head, scale = _scale(group, 127.0)
            found += head + bytes(_whole(number, scale, 127) & 0xFF for number in group)
            continue
        mixed = mix([*group, *[0.0] * (GROUP - len(group))])
        head, scale = _scale(mixed, 7.0)
        codes = [_whole(number, scale, 7) + 8 for number in mixed]
        pairs = zip(codes[: GROUP // 2], codes[GROUP // 2 :], strict=True)
        found += head + bytes(low | high << 4 for low, high in pairs)
    return found


def read_row(codec: int, data: bytes, width: int) -> list[float]:
    """Return the numbers of a row again."""
    if codec == RAW:
        return list(struct.unpack(f"<{width}f", data))
    if codec == BF16:
        return [wide(half) for half in struct.unpack(f"<{width}H", data)]
    if codec == FP8:
        scale = wide(data[0] | data[1] << 8)
        return [single(_from_e4m3(code) * scale) for code in data[2:]]
    row: list[float] = []
    while len(row) < width:
        scale, data = wide(data[0] | data[1] << 8), data[2:]
        if codec == INT8:
            count = min(GROUP, width - len(row))
            codes, data = struct.unpack(f"{count}b", data[:count]), data[count:]
            row += [single(code * scale) for code in codes]
            continue
        packed, data = data[: GROUP // 2], data[GROUP // 2 :]
        codes4 = [*(byte & 15 for byte in packed), *(byte >> 4 for byte in packed)]
        row += mix([single((code - 8) * scale) for code in codes4])
    return row[:width]
