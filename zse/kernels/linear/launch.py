"""How to launch ``linear``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.linear.costs import costs_on
from zse.kernels.linear.definitions import GEMV_16, MATMUL_STREAM
from zse.kernels.linear.plan import form_of, tile_of
from zse.kernels.linear.variants import STEP_COLUMNS, matmul_forms, widen
from zse.kernels.linear.weight import EVEN_ROWS, GROUPED_SCHEMES, PLAIN_SCHEMES, SCALE_BYTES

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.variant import Variant

SLAB_TILES = 2
"""Fewest tiles of the product that are widened at once."""
STREAM_TARGET = "sm_90"
"""Where the product by programs that stay is the faster one."""


def linear(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Activation,
    outputs_address: int,
    plan: LinearPlan,
) -> Partials:
    """Multiply up to 256 tokens with a matrix [N, K].

    Args:
        inputs: Activations [M, K]: int8 exactly if the plan is for them.
        outputs_address: Where float32 [splits, M, N] goes, ``plan.output_bytes``.
        plan: From ``plan_linear`` for this matrix and number of tokens.

    Returns:
        The summands.

    Raises:
        UnsupportedModelError: Activations and matrix do not fit each other or the plan.
    """
    _check(weight, inputs, plan)
    operands: tuple[int, ...]
    if isinstance(inputs, Quantized):
        sums = (inputs.sums,) if "sums" in plan.variant.kernel.arguments[2].name else ()
        operands = (inputs.codes, inputs.scales, *sums, weight.weights, weight.scales)
    else:
        scales = () if plan.variant.kernel is GEMV_16 else (weight.scales,)
        operands = (inputs.values, weight.weights, *scales)
    outputs = (outputs_address, inputs.rows, weight.rows, _steps(weight, inputs, plan))
    launcher.launch(plan.variant, plan.grid, *operands, *outputs)
    return Partials(
        rows=inputs.rows, columns=weight.rows, splits=plan.splits, values=outputs_address
    )


def linear_prefill(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Plain,
    outputs_address: int,
    output_type: str,
    scratch_address: int = 0,
    scratch_bytes: int = 0,
) -> None:
    """Multiply many tokens with a matrix [N, K], a slab of its rows at a time.

    Args:
        inputs: Activations bfloat16 [T, K].
        outputs_address: Where [T, N] goes.
        output_type: ``fp32`` or ``bf16``.
        scratch_address: Where rows of the matrix may lie in 16 bits; not used by 16-bit matrices.
        scratch_bytes: Bytes there. A size that stays in the second-level cache is fastest.

    Raises:
        UnsupportedModelError: The scratch holds too few rows of the matrix.
    """
    form_of(weight)
    plain = weight.scheme in PLAIN_SCHEMES
    unit = EVEN_ROWS if weight.rows % EVEN_ROWS == 0 else 1
    chosen, slab = _cut(launcher, weight, inputs.rows, output_type, scratch_bytes)
    element_bytes = 4 if output_type == "fp32" else 2
    for first in range(0, weight.rows, slab):
        rows = min(slab, weight.rows - first)
        source = weight.weights
        if not plain:
            source = scratch_address
            _widen(launcher, weight, first, rows, scratch_address)
        tile_rows, tile_tokens = tile_of(chosen)
        programs = -(-inputs.rows // tile_tokens) * -(-rows // tile_rows)
        if chosen.kernel is MATMUL_STREAM:
            programs = min(programs, launcher.device.multiprocessors)
        launcher.launch(
            chosen,
            (programs, 1, 1),
            inputs.values,
            source,
            outputs_address + first * element_bytes,
            inputs.rows,
            rows // unit,
            weight.columns // STEP_COLUMNS,
            weight.rows // unit,
        )


def _cut(
    launcher: Launcher, weight: LinearWeight, tokens: int, output_type: str, scratch_bytes: int
) -> tuple[Variant, int]:
    """Return the form of the product and how many rows of the matrix it takes at a time.

    Of the numbers of tiles that fit the scratch, the one that leaves the fewest multiprocessors
    idle at the end of its product, counted over the whole matrix.
    """
    plain = weight.scheme in PLAIN_SCHEMES
    even = weight.rows % EVEN_ROWS == 0
    stream = launcher.device.target == STREAM_TARGET
    forms = matmul_forms(weight.scheme if plain else "bf16", output_type, even=even, stream=stream)
    processors, costs = launcher.device.multiprocessors, costs_on(launcher.device)
    held_rows = weight.rows if plain else scratch_bytes // (weight.columns * 2)
    found = []
    for order, form in enumerate(forms):
        tile_rows, tile_tokens = tile_of(form)
        width = -(-weight.rows // tile_rows)
        height = -(-tokens // tile_tokens)
        fitting = width if held_rows >= weight.rows else held_rows // tile_rows
        if fitting < min(SLAB_TILES, width):
            continue
        for tiles in (width,) if plain else range(1, min(fitting, width) + 1):
            slabs, rest = divmod(width, tiles)
            waves = slabs * -(-tiles * height // processors) + -(-rest * height // processors)
            rounds = waves * costs.tile_rounds.get(tile_rows, 1.0)
            cost = rounds + (slabs + (rest > 0)) * costs.slab_rounds
            found.append((cost, order, tiles * tile_rows, form))
    if not found:
        raise UnsupportedModelError(
            f"the scratch of {scratch_bytes} bytes holds {held_rows} rows of {weight.columns} "
            f"columns, expected at least {SLAB_TILES * tile_of(forms[0])[0]}"
        )
    _, _, slab, form = min(found, key=lambda entry: entry[:2])
    return form, slab


def _widen(
    launcher: Launcher, weight: LinearWeight, first: int, rows: int, scratch_address: int
) -> None:
    """Write rows of the matrix as bfloat16."""
    if weight.scheme in GROUPED_SCHEMES:
        columns = weight.group_size
        scale_bytes = SCALE_BYTES[weight.scheme] * (weight.columns // columns)
    else:
        columns = STEP_COLUMNS
        scale_bytes = 4
    chosen = widen(weight.scheme, weight.group_size)
    steps = weight.columns // columns
    launcher.launch(
        chosen,
        (steps, -(-rows // int(dict(chosen.constants)["BN"])), 1),
        weight.weights + first * weight.row_bytes,
        weight.scales + first * scale_bytes,
        scratch_address,
        rows,
        steps,
    )


def _steps(weight: LinearWeight, inputs: Activation, plan: LinearPlan) -> int:
    """Return a row's length in the unit of the kernel."""
    if isinstance(inputs, Quantized):
        return weight.columns // 128
    constants = dict(plan.variant.constants)
    if "R" in constants:
        return weight.columns // 8
    return weight.columns // int(constants.get("BK", weight.group_size or 1))


def _check(weight: LinearWeight, inputs: Activation, plan: LinearPlan) -> None:
    quantized = isinstance(inputs, Quantized)
    wanted = any(argument.name == "codes" for argument in plan.variant.kernel.arguments)
    shapes = (inputs.rows, inputs.columns, weight.rows)
    if shapes != (plan.rows, weight.columns, plan.columns) or quantized != wanted:
        raise UnsupportedModelError(
            f"activations {inputs.rows} x {inputs.columns} and a matrix {weight.rows} x "
            f"{weight.columns} do not fit the plan {plan.variant.key} for {plan.rows} tokens"
        )
