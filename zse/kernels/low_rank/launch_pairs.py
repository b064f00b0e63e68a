"""How to launch ``shrink_pairs`` and ``expand_pairs``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import Partials, Quantized
from zse.kernels.low_rank.launch import check_row
from zse.kernels.low_rank.variants import COLUMNS, expand_pairs_variant, shrink_pairs_variant

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Plain
    from zse.kernels.low_rank.launch import AdaptedMatrix, AdaptedRows
    from zse.kernels.route.launch import Choice


def add_to_pairs(
    launcher: Launcher,
    stack: AdaptedMatrix,
    adapted: AdaptedRows,
    choice: Choice,
    inputs: Activation,
    outputs: Partials | Plain,
    workspace_address: int,
    *,
    is_down: bool,
) -> None:
    """Add what adapters make of the inputs of experts to their products.

    Args:
        stack: Of the experts' matrices: the records of one follow those of another.
        adapted: Which rows have which adapter.
        choice: Which experts rows go through.
        inputs: A row for each row of the step, or for each pair if ``is_down``.
        outputs: bfloat16 of each pair, [pairs, N]. Or summands: float32 [splits, pairs, N], or if
            ``is_down`` those of each row, [slots * splits, rows, N], which have been weighted.
        workspace_address: float32, ``pairs_workspace_bytes`` of them.

    Raises:
        UnsupportedModelError: A row of the inputs or of the product is no multiple of 16 long.
    """
    check_row(inputs.columns, "reads")
    check_row(outputs.columns, "writes")
    many, lines = adapted.has_many_rows, adapted.tiles * adapted.tile_rows * choice.slots
    of_rows = (adapted.rows, adapted.places, stack.memory, choice.experts)
    is_quantized = isinstance(inputs, Quantized)
    launcher.launch(
        shrink_pairs_variant(many=many, quantized=is_quantized),
        (lines, stack.parts, 1),
        inputs.codes if isinstance(inputs, Quantized) else inputs.values,
        inputs.scales if isinstance(inputs, Quantized) else 0,
        *of_rows,
        workspace_address,
        stack.first_record,
        inputs.columns,
        stack.most_rank,
        choice.slots,
        int(is_down),
    )
    has_summands = isinstance(outputs, Partials)
    row_lines, slot_lines = choice.slots, 1
    if isinstance(outputs, Partials) and is_down:
        row_lines, slot_lines = 1, outputs.splits // choice.slots * choice.rows
    launcher.launch(
        expand_pairs_variant(many=many, element="fp32" if has_summands else "bf16"),
        (lines, -(-stack.widest_part // COLUMNS), stack.parts),
        workspace_address,
        *of_rows,
        choice.weights,
        stack.starts,
        outputs.values,
        stack.first_record,
        outputs.columns,
        stack.most_rank,
        choice.slots,
        row_lines,
        slot_lines,
        int(has_summands and is_down),
    )


def pairs_workspace_bytes(
    parts: int, most_rank: int, slots: int, *, tiles: int, tile_rows: int
) -> int:
    """Return the bytes that one of the two kernels hands on to the other for a stack."""
    return 4 * tiles * tile_rows * slots * parts * most_rank
