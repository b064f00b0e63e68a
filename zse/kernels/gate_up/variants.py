"""The compiled forms of ``silu_mul``, ``activate`` and ``activate_times``."""

from __future__ import annotations

from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.gate_up.triton.kernel"
_OUTPUTS = (pointer("outputs", "i8"), pointer("scales", "fp32"), pointer("sums", "fp32"))
_SIZES = (number("width", aligned=True), number("rows"), number("splits"))

SILU_MUL = Kernel(
    name="gate_up.silu_mul",
    module=MODULE,
    function="silu_mul",
    arguments=(pointer("inputs", "fp32"), *_OUTPUTS, *_SIZES),
)
ACTIVATE = Kernel(
    name="gate_up.activate",
    module=MODULE,
    function="activate",
    arguments=(
        pointer("inputs", "fp32"),
        pointer("bias", "fp32"),
        *_OUTPUTS,
        *_SIZES,
        number("has_bias"),
        number("activation"),
        number("limit", "fp32"),
    ),
)
ACTIVATE_TIMES = Kernel(
    name="gate_up.activate_times",
    module=MODULE,
    function="activate_times",
    arguments=(
        pointer("inputs", "fp32"),
        pointer("factors", "fp32"),
        *_OUTPUTS,
        *_SIZES,
        number("factor_columns", aligned=True),
        number("activation"),
    ),
)
FEW_GROUPS, MANY_GROUPS = 1, 8
"""Groups of 128 columns a program: one where programs are few, eight where there are plenty."""


def silu_mul_variant(groups: int, *, element: str, quantized: bool) -> Variant:
    """Return the form that reads ``fp32`` or ``bf16`` and stores int8 or bfloat16."""
    types = _types(element, quantized=quantized)
    return variant(SILU_MUL, num_warps=_warps(groups), types=types, GROUPS=groups)


def activate_variant(groups: int, *, element: str, quantized: bool, gated: bool) -> Variant:
    """Return the form for products with an up half (``gated``) or without."""
    types = _types(element, quantized=quantized)
    return variant(ACTIVATE, num_warps=_warps(groups), types=types, GATED=gated, GROUPS=groups)


def activate_times_variant(*, quantized: bool) -> Variant:
    """Return the form that multiplies by factors that are there already; rows are short."""
    types = _types("fp32", quantized=quantized)
    return variant(ACTIVATE_TIMES, num_warps=_warps(FEW_GROUPS), types=types, GROUPS=FEW_GROUPS)


def _types(element: str, *, quantized: bool) -> dict[str, str]:
    types = {} if element == "fp32" else {"inputs": f"*{element}"}
    return types if quantized else types | {"outputs": "*bf16"}


def _warps(groups: int) -> int:
    return 1 if groups == FEW_GROUPS else 4


_IN_AND_OUT = (("fp32", True), ("fp32", False), ("bf16", False))
"""Products in 16 bits are those of many rows, whose activations have 16 bits too."""
VARIANTS: tuple[Variant, ...] = (
    *(
        form
        for groups in (FEW_GROUPS, MANY_GROUPS)
        for element, quantized in _IN_AND_OUT
        for form in (
            silu_mul_variant(groups, element=element, quantized=quantized),
            activate_variant(groups, element=element, quantized=quantized, gated=True),
            activate_variant(groups, element=element, quantized=quantized, gated=False),
        )
    ),
    *(activate_times_variant(quantized=quantized) for quantized in (True, False)),
)
