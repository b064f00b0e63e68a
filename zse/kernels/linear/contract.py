"""Contract of ``linear``."""

from __future__ import annotations

from zse.kernels.contract import Contract, operand

CONTRACT = Contract(
    name="linear",
    inputs=(
        operand("activations", "T K", "bf16", "int8"),
        operand("weight", "N K", "f16", "bf16", "int8", "int4", "nf4"),
    ),
    outputs=(operand("outputs", "T N"),),
    relative_tolerance=2e-3,
    relative_tolerance_16bit=1e-2,
)
"""Against the product in float64 of the same activations: with int8 activations (nf4 values as
``nf4.NF4_INT8``) the first tolerance, with 16-bit ones the second."""
