"""Contract of ``embed``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="embed",
    inputs=(
        operand("token_ids", "T", "i64"),
        operand("weight", "V H", "f32", "f16", "bf16", "int8", "int4", "nf4"),
    ),
    outputs=(operand("residual", "T H"),),
    relative_tolerance=0.0,
    relative_tolerance_16bit=4e-3,
)
