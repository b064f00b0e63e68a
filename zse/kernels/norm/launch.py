"""How to launch ``norm``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import Quantized, activation_addresses
from zse.kernels.norm.variants import (
    FAMILY_ROW_GROUPS,
    family_norm_variant,
    residual_norm_variant,
    row_groups_for,
)

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Partials
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
    added_bias_address: int = 0,
    added_scale: float = 1.0,
    is_layer_norm: bool = False,
    norm_bias_address: int = 0,
    output_scale: float = 1.0,
    tuned: Variant | None = None,
) -> None:
    """Add pending sums to the residual stream, then store its norm.

    Args:
        residual_address: float32 [T, hidden]; changed in place when ``added`` is given and rows
            are not gathered.
        hidden: Columns; a multiple of 16, and of 128 for quantized output.
        norm_address: float32 [hidden] weight.
        output: Where activations go: int8 codes (rounded to nearest, halves to even) or bfloat16.
        added: Summands to add to the stream first, [splits, T, hidden].
        row_index_address: int32 [rows]: row i of the output is made of this row of the stream and
            of ``added``, and nothing is written back; 0 for all rows in place.
        added_bias_address: float32 [hidden], added to the sum of ``added``; 0 for none.
        added_scale: Multiplies that sum, its bias included.
        norm_bias_address: float32 [hidden], added after a LayerNorm's weight; 0 for none.
        output_scale: Multiplies the result. Before the head it scales the logits, without a
            launch of its own and whatever the head's scheme.
        tuned: Another compiled form of the plain RMSNorm to use, when forms are compared.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    scales, sums, outputs = activation_addresses(output)
    quantized, gather = isinstance(output, Quantized), row_index_address != 0
    sources = (residual_address, added.values if added else 0, row_index_address, norm_address)
    targets = (outputs, scales, sums, hidden)
    summands = (added.split_rows, added.splits) if added else (rows, 0)
    biases, factors = (norm_bias_address, added_bias_address), (added_scale, output_scale)
    if not (is_layer_norm or any(biases) or factors != (1.0, 1.0)):
        form = tuned or residual_norm_variant(
            row_groups_for(hidden), quantized=quantized, gather=gather
        )
        launcher.launch(form, (rows, 1, 1), *sources, *targets, *summands, epsilon)
        return
    groups = row_groups_for(hidden, FAMILY_ROW_GROUPS)
    form = family_norm_variant(groups, quantized=quantized, layer=is_layer_norm)
    flags = (int(gather), *(int(bias != 0) for bias in biases))
    numbers = (*summands, *flags, *factors, epsilon)
    launcher.launch(form, (rows, 1, 1), *sources, *biases, *targets, *numbers)
