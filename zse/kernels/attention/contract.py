"""Contract of ``attention``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="attention",
    inputs=(
        operand("query", "T HQ D"),
        operand("cache", "S 2HK D", "f32", "bf16", "f16", "int8"),
        operand("slots", "P", "i64"),
    ),
    outputs=(operand("attended", "T HQ*D"),),
    relative_tolerance=1e-5,
    relative_tolerance_16bit=1e-2,
)

INT8_CACHE_TOLERANCE = 2e-2
"""Largest error over largest value with an int8 cache, against the values before they were int8."""
