"""How to launch the kernels of ``gate_up``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.gate_up.variants import (
    FEW_GROUPS,
    MANY_GROUPS,
    activate_times_variant,
    activate_variant,
    silu_mul_variant,
)
from zse.kernels.layout import (
    ACTIVATION_GROUP,
    ACTIVATIONS,
    NO_LIMIT,
    Partials,
    Plain,
    Quantized,
    activation_addresses,
    summands,
)

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation

PROGRAMS_A_MULTIPROCESSOR = 16


def activate(
    launcher: Launcher,
    inputs: Partials | Plain,
    output: Activation,
    *,
    activation: str = "silu",
    gated: bool = True,
    bias_address: int = 0,
    limit: float | None = None,
) -> None:
    """Store activation(gate) * up, or activation(up) where nothing gates.

    Args:
        inputs: [rows, 2 * width], gate columns, then up columns; or [rows, width]. Summands or
            bfloat16.
        output: [rows, width]; width a multiple of 16, and of 128 for quantized output.
        activation: One of ``layout.ACTIVATIONS``.
        bias_address: float32 [columns of inputs], added to them first; 0 for none.
        limit: Bound of ``swiglu_oai``; None for none.

    Raises:
        UnsupportedModelError: The activation or the width is none that a kernel takes.
    """
    width = output.columns
    known = ACTIVATIONS if gated else ACTIVATIONS[:-1]
    if activation not in known or width % 16 or inputs.columns != (1 + gated) * width:
        raise UnsupportedModelError(
            f"activation {activation!r} of {inputs.columns} columns into {width}; expected one of "
            f"{', '.join(known)}, and a multiple of 16 columns, twice as many with a gate"
        )
    scales, sums, outputs = activation_addresses(output)
    groups = -(-width // ACTIVATION_GROUP)
    many = inputs.rows * groups > launcher.device.multiprocessors * PROGRAMS_A_MULTIPROCESSOR
    groups_each = MANY_GROUPS if many else FEW_GROUPS
    element = "fp32" if isinstance(inputs, Partials) else "bf16"
    quantized = isinstance(output, Quantized)
    grid = (inputs.rows, -(-groups // groups_each), 1)
    targets = (outputs, scales, sums, width, *summands(inputs))
    if activation == "silu" and gated and not bias_address:
        form = silu_mul_variant(groups_each, element=element, quantized=quantized)
        launcher.launch(form, grid, inputs.values, *targets)
        return
    form = activate_variant(groups_each, element=element, quantized=quantized, gated=gated)
    kind, bound = ACTIVATIONS.index(activation), NO_LIMIT if limit is None else limit
    launcher.launch(
        form, grid, inputs.values, bias_address, *targets, int(bias_address != 0), kind, bound
    )


def activate_times(
    launcher: Launcher,
    inputs: Partials,
    factors_address: int,
    factor_columns: int,
    output: Activation,
    *,
    activation: str,
) -> None:
    """Store activation(inputs) * factors.

    Args:
        inputs: Summands, [rows, width].
        factors_address: float32, the factors of the first row; 16-byte aligned.
        factor_columns: Numbers from a row of factors to the next; a multiple of 16.
        output: [rows, width]; width a multiple of 16, and of 128 for quantized output.
        activation: One of ``layout.ACTIVATIONS`` but ``swiglu_oai``.

    Raises:
        UnsupportedModelError: The activation or a width is none that the kernel takes.
    """
    width, known = output.columns, ACTIVATIONS[:-1]
    if activation not in known or width % 16 or factor_columns % 16 or inputs.columns != width:
        raise UnsupportedModelError(
            f"activation {activation!r} of {inputs.columns} columns into {width}, by rows of "
            f"{factor_columns} factors; expected one of {', '.join(known)}, and as many columns, "
            "in multiples of 16"
        )
    scales, sums, outputs = activation_addresses(output)
    launcher.launch(
        activate_times_variant(quantized=isinstance(output, Quantized)),
        (inputs.rows, -(-width // ACTIVATION_GROUP), 1),
        inputs.values,
        factors_address,
        outputs,
        scales,
        sums,
        width,
        *summands(inputs),
        factor_columns,
        ACTIVATIONS.index(activation),
    )
