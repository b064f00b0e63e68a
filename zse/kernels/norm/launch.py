"""How to launch ``norm``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import ACTIVATION_GROUP, Quantized, activation_addresses
from zse.kernels.norm.variants import (
    QUANTIZE_GROUPS,
    quantize_variant,
    residual_norm_variant,
    row_groups_for,
)

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Partials, Plain
    from zse.kernels.variant import Variant


def residual_norm(
    launcher: Launcher,
    residual_address: int,
    rows: int,
    hidden: int,
    norm_address: int,
    epsilon: float,
    output: Activation,
    *,
    added: Partials | None = None,
    row_index_address: int = 0,
    tuned: Variant | None = None,
) -> None:
    """Add pending sums to the residual stream, then store its RMSNorm.

    Args:
        launcher: Where to launch.
        residual_address: float32 [T, hidden]; changed in place when ``added`` is given and rows
            are not gathered.
        rows: Rows of the output.
        hidden: Columns; a multiple of 16, and of 128 for quantized output.
        norm_address: float32 [hidden] weight.
        epsilon: Added to the mean of squares.
        output: Where activations go: int8 codes (rounded to nearest, halves to even) or bfloat16.
        added: Summands to add to the stream first, [splits, T, hidden].
        row_index_address: int32 [rows]: row i of the output is made of this row of the stream and
            of ``added``, and nothing is written back; 0 for all rows in place.
        tuned: Another compiled form to use, when forms are compared.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    scales, sums, outputs = activation_addresses(output)
    gather = row_index_address != 0
    chosen = residual_norm_variant(
        row_groups_for(hidden), quantized=isinstance(output, Quantized), gather=gather
    )
    launcher.launch(
        tuned or chosen,
        (rows, 1, 1),
        residual_address,
        added.values if added else 0,
        row_index_address,
        norm_address,
        outputs,
        scales,
        sums,
        hidden,
        added.split_rows if added else rows,
        added.splits if added else 0,
        epsilon,
    )


def quantize(
    launcher: Launcher, inputs: Plain, output: Quantized, *, element: str = "bf16"
) -> None:
    """Turn plain activations into int8 codes.

    Args:
        launcher: Where to launch.
        inputs: [rows, columns], columns a multiple of 128.
        output: Where codes, scales and sums go.
        element: ``bf16``, or ``fp32`` when ``inputs`` points at float32.
    """
    activation_addresses(output)
    chunks = -(-inputs.columns // (ACTIVATION_GROUP * QUANTIZE_GROUPS))
    launcher.launch(
        quantize_variant(element),
        (inputs.rows, chunks, 1),
        inputs.values,
        output.codes,
        output.scales,
        output.sums,
        inputs.columns,
    )
