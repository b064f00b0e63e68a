"""The numbers of MXFP4, as the OCP Microscaling specification has them (SPEC.md)."""

from __future__ import annotations

MXFP4_CODES: tuple[float, ...] = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)
"""What codes 0 to 15 stand for (E2M1: sign, two bits of exponent, one of mantissa)."""
MXFP4_GROUP = 32
"""Columns that share a scale."""
EXPONENT_BIAS = 127
"""A stored exponent (E8M0) e is the scale 2 ** (e - EXPONENT_BIAS)."""
MAX_EXPONENT = 252
"""The largest stored exponent whose values are all finite in float32 and bfloat16; 255 is NaN."""
