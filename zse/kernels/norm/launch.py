"""How to launch ``norm``. Neither torch nor triton is needed here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.kernels.layout import Quantized, activation_addresses
from zse.kernels.norm.variants import (
    FAMILY_ROW_GROUPS,
    STREAM_ROW_GROUPS,
    family_norm_variant,
    heads_norm_variant,
    post_norm_variant,
    residual_norm_variant,
    row_groups_for,
    stream_norm_variant,
)
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, HeadShape, Partials, Plain
    from zse.kernels.variant import Variant


@record
class PostNorm:
    """RMSNorm of what is added to the stream, and a factor of the stream after that."""

    address: int = 0
    """Of float32 [hidden], 0 for no norm."""
    epsilon: float = 1.0
    stream_scale_address: int = 0
    """Of one float32, 0 for none."""


def residual_norm(
    launcher: Launcher,
    residual_address: int,
    rows: int,
    hidden: int,
    norm_address: int | None,
    epsilon: float,
    output: Activation,
    *,
    added: Partials | None = None,
    row_index_address: int = 0,
    added_bias_address: int = 0,
    added_scale: float = 1.0,
    post: PostNorm | None = None,
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
        norm_address: float32 [hidden] weight; None stores the stream itself.
        output: Where activations go: int8 codes (rounded to nearest, halves to even) or bfloat16.
        added: Summands to add to the stream first, [splits, T, hidden].
        row_index_address: int32 [rows]: row i of the output is made of this row of the stream and
            of ``added``, and nothing is written back; 0 for all rows in place.
        added_bias_address: float32 [hidden], added to the sum of ``added``; 0 for none.
        added_scale: Multiplies that sum, its bias included.
        post: What is done to that sum first, and to the stream after it; not with a LayerNorm.
        norm_bias_address: float32 [hidden], added after a LayerNorm's weight; 0 for none.
        output_scale: Multiplies the result; before a head of any scheme it scales the logits.
        tuned: Another compiled form of the plain RMSNorm to use, when forms are compared.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    scales, sums, outputs = activation_addresses(output)
    quantized, gather = isinstance(output, Quantized), row_index_address != 0
    sources = (residual_address, added.values if added else 0, row_index_address, norm_address or 0)
    targets = (outputs, scales, sums, hidden)
    summands = (added.split_rows, added.splits) if added else (rows, 0)
    biases, factors = (norm_bias_address, added_bias_address), (added_scale, output_scale)
    is_plain = not (is_layer_norm or any(biases) or factors != (1.0, 1.0))
    if post is None and norm_address is not None and is_plain:
        form = tuned or residual_norm_variant(
            row_groups_for(hidden), quantized=quantized, gather=gather
        )
        launcher.launch(form, (rows, 1, 1), *sources, *targets, *summands, epsilon)
        return
    normed = norm_address is not None
    form, extras, epsilons = _family_form(
        hidden, post, biases, quantized=quantized, normed=normed, layer=is_layer_norm
    )
    flags = (int(gather), *(int(address != 0) for address in extras))
    numbers = (*summands, *flags, *factors, epsilon, *epsilons)
    launcher.launch(form, (rows, 1, 1), *sources, *extras, *targets, *numbers)


def _family_form(
    hidden: int,
    post: PostNorm | None,
    biases: tuple[int, int],
    *,
    quantized: bool,
    normed: bool,
    layer: bool,
) -> tuple[Variant, tuple[int, ...], tuple[float, ...]]:
    """Return a form that only some families need, and the addresses and epsilons that it takes."""
    groups = row_groups_for(hidden, FAMILY_ROW_GROUPS)
    if post is None and normed:
        return family_norm_variant(groups, quantized=quantized, layer=layer), biases, ()
    post = post or PostNorm()
    form = post_norm_variant(groups, quantized=quantized, normed=normed)
    return form, (biases[1], post.address, post.stream_scale_address), (post.epsilon,)


def sums_norm(
    launcher: Launcher,
    added: Partials,
    norm_address: int,
    epsilon: float,
    *,
    bias_address: int = 0,
) -> Partials:
    """Take the RMSNorm of the sum of some summands.

    Args:
        added: Summands; the normed rows, float32, replace the first one.
        norm_address: float32 [columns of added].
        bias_address: float32 [columns of added], added before the norm; 0 for none.

    Returns:
        Where the normed rows are.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    _norm_parts(
        launcher, added, (added.columns, 0), (norm_address, 0), epsilon, bias_address, parts=1
    )
    return replace(added, splits=1)


def stream_norm(
    launcher: Launcher,
    residual_address: int,
    hidden: int,
    norm_address: int,
    epsilon: float,
    output: Plain,
    *,
    added: Partials | None = None,
    added_bias_address: int = 0,
    added_scale: float = 1.0,
    norm_bias_address: int = 0,
) -> None:
    """Add pending sums to the residual stream, whose LayerNorm takes its place, and is stored.

    Args:
        residual_address: float32 [T, hidden], changed in place.
        norm_address: float32 [hidden] weight.
        output: The same as the stream then, in bfloat16.
        added: Summands to add to the stream first, [splits, T, hidden].
        added_bias_address: float32 [hidden], added to their sum; 0 for none.
        added_scale: Multiplies that sum, its bias included.
        norm_bias_address: float32 [hidden], added after the weight; 0 for none.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    launcher.launch(
        stream_norm_variant(row_groups_for(hidden, STREAM_ROW_GROUPS)),
        (output.rows, 1, 1),
        residual_address,
        added.values if added else 0,
        norm_address,
        norm_bias_address,
        added_bias_address,
        output.values,
        hidden,
        *((added.split_rows, added.splits) if added else (output.rows, 0)),
        int(norm_bias_address != 0),
        int(added_bias_address != 0),
        added_scale,
        epsilon,
    )


def heads_norm(
    launcher: Launcher,
    joined: Partials,
    shape: HeadShape,
    *,
    q_norm_address: int,
    k_norm_address: int,
    epsilon: float,
    bias_address: int = 0,
) -> Partials:
    """Take the RMSNorm of all queries of a row together, and that of all its keys.

    Args:
        joined: Summands of queries, keys and values; the whole rows replace the first one.
        q_norm_address: float32 [num_heads * head_dim].
        k_norm_address: float32 [kv_heads * head_dim].
        bias_address: float32 [columns of joined], added before the norms; 0 for none.

    Returns:
        Where the whole rows are, their bias and norms included.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    columns = (shape.query_columns, shape.kv_heads * shape.head_dim)
    norms = (q_norm_address, k_norm_address)
    _norm_parts(launcher, joined, columns, norms, epsilon, bias_address, parts=3)
    return replace(joined, splits=1)


def _norm_parts(
    launcher: Launcher,
    sums: Partials,
    columns: tuple[int, int],
    norm_addresses: tuple[int, int],
    epsilon: float,
    bias_address: int,
    *,
    parts: int,
) -> None:
    """Leave whole rows in the first summand: two parts with their norms, the rest as it is."""
    launcher.launch(
        heads_norm_variant(row_groups_for(max(columns), FAMILY_ROW_GROUPS)),
        (sums.rows, parts, 1),
        sums.values,
        bias_address,
        *norm_addresses,
        sums.split_rows,
        sums.splits,
        int(bias_address != 0),
        *columns,
        sums.columns,
        epsilon,
    )
