"""How to launch ``silu_mul``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.gate_up.variants import (
    ACTIVATIONS,
    FEW_GROUPS,
    MANY_GROUPS,
    silu_mul_variant,
)
from zse.kernels.layout import (
    ACTIVATION_GROUP,
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


def silu_mul(
    launcher: Launcher,
    inputs: Partials | Plain,
    output: Activation,
    *,
    activation: str = "silu",
) -> None:
    """Store activation(gate) * up.

    Args:
        launcher: Where to launch.
        inputs: [rows, 2 * width]: gate columns, then up columns; summands or bfloat16.
        output: [rows, width]; width a multiple of 16, and of 128 for quantized output.
        activation: ``silu``, or ``gelu`` for its tanh form.

    Raises:
        UnsupportedModelError: The activation or the width is none that a kernel takes.
    """
    width = output.columns
    if activation not in ACTIVATIONS or width % 16 or inputs.columns != 2 * width:
        raise UnsupportedModelError(
            f"activation {activation!r} of {inputs.columns} columns into {width}; expected one of "
            f"{', '.join(ACTIVATIONS)}, and twice a multiple of 16 columns"
        )
    scales, sums, outputs = activation_addresses(output)
    groups = -(-width // ACTIVATION_GROUP)
    many = inputs.rows * groups > launcher.device.multiprocessors * PROGRAMS_A_MULTIPROCESSOR
    groups_each = MANY_GROUPS if many else FEW_GROUPS
    chosen = silu_mul_variant(
        groups_each,
        element="fp32" if isinstance(inputs, Partials) else "bf16",
        quantized=isinstance(output, Quantized),
        activation=activation,
    )
    grid = (inputs.rows, -(-groups // groups_each), 1)
    launcher.launch(chosen, grid, inputs.values, outputs, scales, sums, width, *summands(inputs))
