"""Contract of ``linear_residual``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="linear_residual",
    inputs=(
        operand("inputs", "T K"),
        operand("weight", "H K", "f32", "f16", "bf16", "int8", "int4", "nf4"),
        operand("residual", "T H"),
    ),
    outputs=(operand("residual", "T H"),),
    relative_tolerance=1e-5,
    relative_tolerance_16bit=2e-2,
)
