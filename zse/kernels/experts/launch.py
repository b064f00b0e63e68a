"""How to launch ``experts``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.experts.plan import pair_tile
from zse.kernels.experts.variants import (
    CHUNK_COLUMNS,
    combine_variant,
    grouped_variant,
    is_sorted,
)
from zse.kernels.experts.weight import step_columns
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.linear.variants import ELEMENT
from zse.kernels.linear.weight import SCALE_BYTES

if TYPE_CHECKING:
    from zse.kernels.experts.plan import PairPlan
    from zse.kernels.experts.weight import StackedWeight
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation
    from zse.kernels.route.launch import Choice, Grouping
    from zse.kernels.variant import Variant

WORD_BYTES = 4
DIRECT_SCALE_BYTES = {"int4": 4, "mxfp4": 2}
"""Of what ``direct_products`` loads at once beside the codes: exponents of MXFP4 by twos."""


def pair_products(
    launcher: Launcher,
    weight: StackedWeight,
    inputs: Activation,
    choice: Choice,
    outputs_address: int,
    plan: PairPlan,
    *,
    is_down: bool,
) -> Partials:
    """Multiply a few tokens with the matrices of their experts.

    Args:
        inputs: int8 but for 16-bit weights; a row for each token, or for each pair if ``is_down``.
        outputs_address: Where float32 goes, ``plan.output_bytes``.
        plan: From ``plan_pairs`` for these matrices and this choice.
        is_down: Whether products are weighted and summed over the slots of a token.

    Returns:
        Summands of each pair, [splits, pairs, rows of a matrix]; if ``is_down`` those of each
        token, [slots * splits, tokens, rows of a matrix].

    Raises:
        UnsupportedModelError: Activations and matrices do not fit each other.
    """
    _check(weight, inputs, choice, is_down=is_down)
    sizes = dict(plan.variant.constants)
    columns = (8 if sizes["SCHEME"] == "16-bit" else 16) * int(sizes["PIECES"])
    columns *= 2 if sizes["GROUP"] else 1
    if isinstance(inputs, Quantized):
        operands = (inputs.codes, inputs.scales, inputs.sums)
        element_bytes = WORD_BYTES
    else:
        operands, element_bytes = (inputs.values, 0, 0), 2
    launcher.launch(
        plan.variant,
        (-(-weight.rows // plan.tile_rows), plan.splits, choice.pairs),
        *operands,
        weight.stack.weights,
        weight.stack.scales or weight.stack.weights,
        weight.bias,
        choice.experts,
        choice.weights,
        outputs_address,
        *_shared(weight, element_bytes),
        weight.rows,
        weight.columns // columns,
        choice.rows,
        choice.slots,
        weight.experts,
        int(weight.bias != 0),
        int(is_down),
    )
    rows, splits = choice.pairs, plan.splits
    if is_down:
        rows, splits = choice.rows, choice.slots * plan.splits
    return Partials(rows=rows, columns=weight.rows, splits=splits, values=outputs_address)


def direct_products(
    launcher: Launcher,
    weight: StackedWeight,
    inputs: Quantized,
    choice: Choice,
    grouping: Grouping,
    outputs_address: int,
    form: Variant,
    *,
    is_down: bool,
) -> Partials:
    """Multiply some tokens with the matrices of their experts, those of an expert together.

    Args:
        inputs: A row for each token, or for each pair if ``is_down``.
        grouping: The pairs of ``choice`` in the order of their experts.
        outputs_address: Where float32 [pairs, rows of a matrix] goes.
        form: One of ``plan_direct``; only some take pairs of a ``grouping`` (``is_sorted``).
        is_down: Whether products are weighted and summed over the slots of a token.

    Returns:
        What ``pair_products`` returns, of one split.

    Raises:
        UnsupportedModelError: Activations and matrices do not fit each other.
    """
    _check(weight, inputs, choice, is_down=is_down)
    codes, scales = _shared_of_direct(weight)
    launcher.launch(
        form,
        (-(-weight.rows // int(dict(form.constants)["BN"])), _tiles(form, choice, grouping), 1),
        *_direct_operands(weight, inputs, choice, grouping, form),
        choice.weights,
        outputs_address,
        codes,
        scales,
        weight.rows,
        weight.columns // weight.stack.group_size,
        choice.rows,
        choice.slots,
        weight.experts,
        grouping.groups,
        int(weight.bias != 0),
        int(is_down),
    )
    rows, splits = (choice.rows, choice.slots) if is_down else (choice.pairs, 1)
    return Partials(rows=rows, columns=weight.rows, splits=splits, values=outputs_address)


def _direct_operands(
    weight: StackedWeight, inputs: Quantized, choice: Choice, grouping: Grouping, form: Variant
) -> tuple[int, ...]:
    sorts = is_sorted(form)
    return (
        inputs.codes,
        inputs.scales,
        inputs.sums,
        weight.stack.weights,
        weight.stack.scales,
        weight.bias,
        grouping.order if sorts else choice.experts,
        grouping.starts if sorts else 0,
    )


def _tiles(form: Variant, choice: Choice, grouping: Grouping) -> int:
    """Return the programs for the tiles of all experts' pairs, of which some find nothing."""
    if not is_sorted(form):
        return choice.pairs
    return choice.pairs // int(dict(form.constants)["BM"]) + grouping.groups


def _shared_of_direct(weight: StackedWeight) -> tuple[int, int]:
    """Return the elements from the stack to the shared expert's, as the kernels load them."""
    codes, scales = weight.shared_bytes()
    return codes // WORD_BYTES, scales // DIRECT_SCALE_BYTES[weight.stack.scheme]


def grouped_products(
    launcher: Launcher,
    weight: StackedWeight,
    inputs: Plain,
    choice: Choice,
    grouping: Grouping,
    outputs_address: int,
    *,
    is_down: bool,
    tile: int = 0,
    tuned: Variant | None = None,
) -> Plain:
    """Multiply many tokens with the matrices of their experts.

    Args:
        inputs: bfloat16, a row for each token, or for each pair if ``is_down``.
        grouping: The pairs of ``choice`` in the order of their experts.
        outputs_address: Where bfloat16 [pairs, rows of a matrix] goes.
        tile: Pairs of one expert that a program multiplies together, one of ``PAIR_TILES``; 0 for
            as many as suit the number of pairs.
        tuned: Another compiled form to use, when forms are compared.

    Raises:
        UnsupportedModelError: Activations and matrices do not fit each other.
    """
    _check(weight, inputs, choice, is_down=is_down)
    scheme, step = weight.stack.scheme, step_columns(weight)
    if weight.columns % step or weight.rows % 16:
        raise UnsupportedModelError(
            f"experts of {weight.rows} x {weight.columns} in {scheme}; the GPU kernels take rows "
            f"in multiples of 16 and columns in multiples of {step}"
        )
    tile = tile or pair_tile(choice.pairs, grouping.groups)
    form = tuned or grouped_variant(scheme, weight.stack.group_size, bm=tile)
    sizes = dict(form.constants)
    width, height = int(sizes["BN"]), int(sizes["BM"])
    element_bytes = 2 if ELEMENT.get(scheme, "*i8") != "*i8" else 1
    launcher.launch(
        form,
        (-(-weight.rows // width), choice.pairs // height + grouping.groups, 1),
        inputs.values,
        weight.stack.weights,
        weight.stack.scales or weight.stack.weights,
        weight.bias,
        grouping.order,
        grouping.starts,
        outputs_address,
        *_shared(weight, element_bytes),
        weight.rows,
        weight.columns // step,
        choice.slots,
        weight.experts,
        grouping.groups,
        int(weight.bias != 0),
        int(is_down),
    )
    return Plain(rows=choice.pairs, columns=weight.rows, values=outputs_address)


def combine(
    launcher: Launcher,
    outputs_address: int,
    pairs: Plain,
    choice: Choice,
    *,
    shared: Partials | None = None,
    adds: bool = True,
    scale: float = 1.0,
) -> None:
    """Add what the experts of each token made to the residual stream, or store it.

    Args:
        outputs_address: float32 [tokens, hidden], the stream that is changed in place if it
            ``adds``; else where the sums go.
        pairs: [pairs, hidden], not weighted yet.
        choice: Whose weights to take.
        shared: Summands of a shared expert of another width, not weighted yet, which stand for the
            last slot of each token.
        scale: Multiplies the sums.
    """
    summands = (shared.split_rows, shared.splits) if shared else (0, 0)
    has_shared = int(shared is not None)
    launcher.launch(
        combine_variant(),
        (choice.rows, -(-pairs.columns // CHUNK_COLUMNS), 1),
        outputs_address,
        pairs.values,
        choice.weights,
        shared.values if shared else 0,
        pairs.columns,
        choice.slots - has_shared,
        *summands,
        has_shared,
        int(adds),
        scale,
    )


def _shared(weight: StackedWeight, element_bytes: int) -> tuple[int, int]:
    """Return the elements from the stack to the shared expert's codes and scales."""
    codes, scales = weight.shared_bytes()
    scale_bytes = SCALE_BYTES.get(weight.stack.scheme, WORD_BYTES)
    return codes // (element_bytes or 2), scales // scale_bytes


def _check(weight: StackedWeight, inputs: Activation, choice: Choice, *, is_down: bool) -> None:
    rows = choice.pairs if is_down else choice.rows
    if (inputs.rows, inputs.columns) != (rows, weight.columns):
        raise UnsupportedModelError(
            f"activations {inputs.rows} x {inputs.columns}, expected {rows} x {weight.columns} for "
            "these experts"
        )
