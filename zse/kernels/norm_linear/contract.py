"""Contract of ``norm_linear``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="norm_linear",
    inputs=(
        operand("residual", "T H"),
        operand("norm", "H"),
        operand("weight", "N H", "f32", "f16", "bf16", "int8", "int4", "nf4"),
        operand("bias", "N"),
    ),
    outputs=(operand("outputs", "T N"),),
    relative_tolerance=1e-5,
    relative_tolerance_16bit=2e-2,
)
