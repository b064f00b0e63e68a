"""Random bytes for the parts of a tensor, a few megabytes each, repeated at prime distances.

A pattern has a prime number of elements, so that no two rows of a matrix are alike, and every
tensor starts at another place of it. Standard library only.
"""

from __future__ import annotations

import random
import struct
from array import array
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.format.spec import TensorEntry, TensorPart

STANDARD_DEVIATION = 0.02
ELEMENTS = 2097143  # the largest prime below 2**21
SMALL_ELEMENTS = 65521  # the largest prime below 2**16
INT4_STEP, INT8_STEP = 2.7, 36.0
"""Standard deviation of the stored whole numbers."""
NF4_DEVIATION = 0.517
"""Standard deviation of the sixteen NF4 codes, drawn alike often."""
MXFP4_EXPONENTS = bytes((119,) * 5 + (120,) * 11)
"""Drawn alike often they give values of sixteen codes, drawn alike often, that deviation."""
NL4_SCALES = bytes((41, 42, 169, 170))
"""Of both signs, they give levels, drawn alike often, about that deviation."""


class Patterns:
    """One pattern for each kind of part, made when it is first asked for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[str, tuple[bytes, int]] = {}

    def of_part(self, entry: TensorEntry, part: TensorPart) -> tuple[bytes, int]:
        """Return the pattern's bytes and the size of one element in bytes."""
        kind = _kind(entry, part)
        if kind not in self._made:
            self._made[kind] = _make(kind, random.Random(f"{self._seed} {kind}"))
        return self._made[kind]


def _kind(entry: TensorEntry, part: TensorPart) -> str:
    if part.role == "data":
        if entry.name.endswith("norm.weight"):
            return f"ones {part.dtype}"
        return f"{'bias' if len(entry.shape) == 1 else 'weight'} {part.dtype}"
    return f"{part.role} {entry.scheme}"


def _make(kind: str, source: random.Random) -> tuple[bytes, int]:
    match kind.split():
        case ["ones", "f32"]:
            return struct.pack("<f", 1.0) * 4096, 4
        case ["bias" | "weight", "f32"]:
            values = [source.gauss(0.0, STANDARD_DEVIATION) for _ in range(SMALL_ELEMENTS)]
            return array("f", values).tobytes(), 4
        case ["weight", "bf16"]:
            return _gaussian_bf16(source), 2
        case ["qweight", "int4"]:
            return _gaussian_nibbles(source), 1
        case ["qweight", "nf4" | "nl4" | "mxfp4" | "int3" | "int2"]:
            return source.randbytes(ELEMENTS), 1
        case ["qweight", "int8"]:
            table = bytes(round(127 * _clipped(INT8_STEP * z / 127)) & 255 for z in _quantiles())
            return source.randbytes(ELEMENTS).translate(table), 1
        case ["scale_zero", "int4"]:
            return b"".join(_scale_zero(value) for value in _scales(source, INT4_STEP)), 4
        case ["scale_zero", "int3" | "int2" as scheme]:
            bits = int(scheme[3:])
            pairs = (
                struct.pack("<2e", value, -value * ((1 << bits) - 1) / 2)
                for value in _scales(source, INT4_STEP * 2.0 ** (4 - bits))
            )
            return b"".join(pairs), 4
        case ["absmax", "nf4"]:
            scales = list(_scales(source, NF4_DEVIATION))
            return struct.pack(f"<{len(scales)}e", *scales), 2
        case ["exponent", "mxfp4"]:
            return bytes(source.choices(MXFP4_EXPONENTS, k=SMALL_ELEMENTS)), 1
        case ["signed_scale", "nl4"]:
            return bytes(source.choices(NL4_SCALES, k=SMALL_ELEMENTS)), 1
        case ["scale", "int8"]:
            return array("f", _scales(source, INT8_STEP)).tobytes(), 4
    raise ValueError(f"no pattern for {kind}")


def _quantiles() -> list[float]:
    """Return 256 values that stand for a normal distribution, each equally likely."""
    normal = NormalDist()
    return [normal.inv_cdf((index + 0.5) / 256) for index in range(256)]


def _clipped(value: float) -> float:
    return max(-1.0, min(1.0, value))


def _scales(source: random.Random, stored_deviation: float) -> list[float]:
    scale = STANDARD_DEVIATION / stored_deviation
    return [scale * source.uniform(0.9, 1.1) for _ in range(SMALL_ELEMENTS)]


def _scale_zero(scale: float) -> bytes:
    """Return fp16 scale and fp16 -zero*scale, for a zero between 7 and 8."""
    return struct.pack("<ee", scale, -7.5 * scale)


def _gaussian_nibbles(source: random.Random) -> bytes:
    """Return bytes of two independent nibbles each, normal around 7.5."""
    nibbles = [max(0, min(15, round(7.5 + INT4_STEP * z))) for z in _quantiles()]
    low = source.randbytes(ELEMENTS).translate(bytes(nibbles))
    high = source.randbytes(ELEMENTS).translate(bytes(value << 4 for value in nibbles))
    joined = int.from_bytes(low, "little") | int.from_bytes(high, "little")
    return joined.to_bytes(ELEMENTS, "little")


def _gaussian_bf16(source: random.Random) -> bytes:
    """Return bfloat16 values: the upper halves of float32."""
    values = [struct.pack("<f", STANDARD_DEVIATION * z) for z in _quantiles()]
    drawn = source.randbytes(ELEMENTS)
    out = bytearray(2 * ELEMENTS)
    out[0::2] = drawn.translate(bytes(value[2] for value in values))
    out[1::2] = drawn.translate(bytes(value[3] for value in values))
    return bytes(out)
