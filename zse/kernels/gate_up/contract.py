"""Contract of ``gate_up``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="gate_up",
    inputs=(
        operand("residual", "T H"),
        operand("norm", "H"),
        operand("weight", "2K H", "f32", "f16", "bf16", "int8", "int4", "nf4"),
    ),
    outputs=(operand("hidden", "T K"),),
    relative_tolerance=1e-5,
    relative_tolerance_16bit=2e-2,
)
