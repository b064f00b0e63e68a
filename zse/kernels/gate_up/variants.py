"""The compiled forms of ``silu_mul``."""

from __future__ import annotations

from zse.kernels.variant import Kernel, Variant, number, pointer, variant

SILU_MUL = Kernel(
    name="gate_up.silu_mul",
    module="zse.kernels.gate_up.triton.kernel",
    function="silu_mul",
    arguments=(
        pointer("inputs", "fp32"),
        pointer("outputs", "i8"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        number("width", aligned=True),
        number("rows"),
        number("splits"),
    ),
)
ACTIVATIONS = ("silu", "gelu")
FEW_GROUPS, MANY_GROUPS = 1, 8
"""Groups of 128 columns a program: one where programs are few, eight where there are plenty."""


def silu_mul_variant(groups: int, *, element: str, quantized: bool, activation: str) -> Variant:
    """Return the form that reads ``fp32`` or ``bf16`` and stores int8 or bfloat16."""
    types = {} if element == "fp32" else {"inputs": f"*{element}"}
    if not quantized:
        types["outputs"] = "*bf16"
    return variant(
        SILU_MUL,
        num_warps=1 if groups == FEW_GROUPS else 4,
        types=types,
        ACTIVATION=activation,
        GROUPS=groups,
    )


VARIANTS: tuple[Variant, ...] = tuple(
    silu_mul_variant(groups, element=element, quantized=quantized, activation=activation)
    for groups in (FEW_GROUPS, MANY_GROUPS)
    for element in ("fp32", "bf16")
    for quantized in (True, False)
    for activation in ACTIVATIONS
)
