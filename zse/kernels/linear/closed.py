"""How to launch products of one token that begin the norm behind them. No torch, no triton.

A layer of two norms and four products is then six launches for eight; see ``triton.closing``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.layout import ACTIVATION_GROUP, Partials, Quantized
from zse.kernels.linear.closed_forms import closed_form
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.variant import Variant

MOST_COLUMNS = 64 * ACTIVATION_GROUP
"""Columns of the widest rows whose norm is begun so."""
_NOTHING = (0, 0, 0, 0, 0, 0, 0)
"""In place of what a norm behind takes."""
_closed_form = lru_cache(maxsize=512)(closed_form)  # every layer of a step asks


@record
class Begun:
    """Int8 activations without the factor of their norm, which the product of them applies."""

    inputs: Quantized
    squares: int
    """Address of float32 [rows, columns / 128]: sums of the squares of the stream."""
    epsilon: float

    @property
    def rows(self) -> int:
        return self.inputs.rows

    @property
    def columns(self) -> int:
        return self.inputs.columns


def begins_norm(plan: LinearPlan, weight: LinearWeight) -> bool:
    """Whether a planned product can begin the norm behind it."""
    whole = weight.rows % ACTIVATION_GROUP == 0 and weight.rows <= MOST_COLUMNS
    return whole and _closed_form(plan.variant, closes=True) is not None


def reads_begun(plan: LinearPlan, weight: LinearWeight) -> bool:
    """Whether a planned product can be one of a norm that is begun."""
    fits = weight.columns <= MOST_COLUMNS
    return fits and _closed_form(plan.variant, closes=False) is not None


def counters_bytes(rows: int, columns: int) -> int:
    """Return the bytes of the counters of a product of so many tokens with so many columns."""
    return rows * -(-columns // ACTIVATION_GROUP) * 4


def multiply_begun(
    launcher: Launcher, weight: LinearWeight, begun: Begun, outputs_address: int, plan: LinearPlan
) -> Partials:
    """Multiply a norm that is begun with a matrix; see ``linear``.

    Returns:
        The summands.

    Raises:
        UnsupportedModelError: The plan is for others, or has no such form.
    """
    form = _closed_form(plan.variant, closes=False) if reads_begun(plan, weight) else None
    launcher.launch(
        _checked(form, weight, begun.inputs, plan),
        plan.grid,
        *_operands(weight, begun.inputs, outputs_address),
        *(begun.squares, begun.epsilon),
        *_NOTHING,
    )
    return Partials(
        rows=begun.rows, columns=weight.rows, splits=plan.splits, values=outputs_address
    )


def multiply_norm(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Quantized,
    sums_address: int,
    plan: LinearPlan,
    output: Begun,
    residual_address: int,
    norm_address: int,
    counters_address: int,
) -> None:
    """Add a product to the residual stream and begin its RMSNorm.

    Args:
        sums_address: Where float32 [splits, rows, rows of the matrix] lie meanwhile.
        output: [rows, rows of the matrix]; not where the inputs are.
        residual_address: float32 [rows, rows of the matrix], changed in place.
        norm_address: float32 [rows of the matrix], the norm's weight.
        counters_address: Of ``counters_bytes``, zero between launches.

    Raises:
        UnsupportedModelError: The plan is for others, or has no such form.
    """
    form = _closed_form(plan.variant, closes=True) if begins_norm(plan, weight) else None
    made = output.inputs
    launcher.launch(
        _checked(form, weight, inputs, plan),
        plan.grid,
        *_operands(weight, inputs, sums_address),
        *(0, 0.0),
        *(made.codes, made.scales, made.sums, counters_address),
        *(residual_address, norm_address, output.squares),
    )


def _operands(weight: LinearWeight, inputs: Quantized, outputs_address: int) -> tuple[int, ...]:
    activations = (inputs.codes, inputs.scales, inputs.sums)
    sizes = (inputs.rows, weight.rows, weight.columns // ACTIVATION_GROUP)
    return (*activations, weight.weights, weight.scales, outputs_address, *sizes)


def _checked(
    form: Variant | None, weight: LinearWeight, inputs: Quantized, plan: LinearPlan
) -> Variant:
    shapes = (inputs.rows, inputs.columns, weight.rows)
    if form is None or shapes != (plan.rows, weight.columns, plan.columns):
        raise UnsupportedModelError(
            f"activations {inputs.rows} x {inputs.columns} and a matrix {weight.rows} x "
            f"{weight.columns} by {plan.variant.key}; expected a plan for them with a form for "
            f"begun norms, and up to {MOST_COLUMNS} columns in groups of {ACTIVATION_GROUP}"
        )
    return form
