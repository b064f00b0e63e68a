"""Contract of ``rope_store``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="rope_store",
    inputs=(
        operand("qkv", "T HQ+2HK D"),
        operand("q_norm", "D"),
        operand("k_norm", "D"),
        operand("positions", "T", "i64"),
        operand("inverse_frequencies", "D/2"),
        operand("slots", "T", "i64"),
        operand("cache", "S 2HK D", "f32", "bf16", "f16", "int8"),
    ),
    outputs=(operand("query", "T HQ D"),),
    relative_tolerance=1e-5,
    relative_tolerance_16bit=1e-2,
)

INT8_CACHE_TOLERANCE = 2e-2
"""Largest error over largest value of what an int8 cache with 32-channel scales holds."""
