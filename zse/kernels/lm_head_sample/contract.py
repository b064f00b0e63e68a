"""Contract of ``lm_head_sample``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="lm_head_sample",
    inputs=(
        operand("residual", "T H"),
        operand("norm", "H"),
        operand("weight", "V H", "f32", "f16", "bf16", "int8", "int4", "nf4"),
    ),
    outputs=(
        operand("logits", "T V"),
        operand("token_ids", "T", "i64"),
    ),
    relative_tolerance=1e-5,
    relative_tolerance_16bit=2e-2,
)
