"""The numbers of NL4, which the file format fixes (SPEC.md): uneven whole numbers, small scales."""

from __future__ import annotations

NL4_CODES: tuple[int, ...] = (
    -127,
    -102,
    -81,
    -63,
    -48,
    -33,
    -20,
    -8,
    0,
    12,
    24,
    38,
    53,
    70,
    90,
    125,
)
"""What codes 0 to 15 stand for: the least squared error on weights of language models and on drawn
ones, when a group's scale is negative where that is better."""
NL4_GROUP_SIZES = (32, 16)
SCALE_BIAS = 17
"""A stored scale is ``(1 + m / 8) * 2 ** (e - SCALE_BIAS)``, negative where its sign bit is set."""
MAX_SCALE = 1.875 * 2.0 ** (15 - SCALE_BIAS)
"""The largest scale; there is no zero, no infinity and no NaN."""
