"""Chooses the form and the number of splits for a product.

A tuning table that was measured on this very GPU decides where it knows the shape. Elsewhere a
model of the device does: the product takes as long as the busiest multiprocessor reads its share
of the matrix, slower where too few bytes are on their way to hide the memory's latency, and works
on it, plus the sums that each split writes and the next kernel reads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.linear.costs import costs_on
from zse.kernels.linear.definitions import IMMA_DIRECT, IMMA_FOUR_BIT, IMMA_INT8
from zse.kernels.linear.direct_forms import direct_forms, direct_splits
from zse.kernels.linear.variants import (
    DECODE_ROWS,
    STEP_COLUMNS,
    decode_forms,
    dot_forms,
    imma_forms,
    imma_int8_apart,
)
from zse.kernels.linear.weight import GROUPED_SCHEMES, PLAIN_SCHEMES
from zse.records import record

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.tuning import Choice, Tuning
    from zse.kernels.variant import Variant

MAX_ROWS = 256
"""Most tokens of one product; more go through ``linear_prefill``."""
ANY_ROWS = 128
"""Tokens that products are made for whose bits may not depend on how many there are."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
STAYING_ROWS, STAYING_TILES = 65, 2
"""Tokens, and tiles of each program, from which on programs stay."""
DEFAULT_BANDWIDTH = 1e12
LITTLE_SHARED_BYTES = 99 << 10
"""Shared memory of a program that holds no tile of more than 64 tokens."""


@record
class LinearPlan:
    """How one product is computed."""

    variant: Variant
    splits: int
    rows: int
    columns: int
    """Rows of the matrix, columns of the result."""
    staying: int = 0
    """Programs that take tile after tile; 0 where each takes one."""

    @property
    def output_bytes(self) -> int:
        """Bytes of the float32 [splits, rows, columns] that it writes."""
        return self.splits * self.rows * self.columns * 4

    @property
    def grid(self) -> Grid:
        """Programs along the matrix, the splits and the tokens."""
        tile, tokens = tile_of(self.variant)
        if self.staying:
            return (self.staying, 1, 1)
        return (-(-self.columns // tile), self.splits, -(-self.rows // tokens))


def plan_linear(
    weight: LinearWeight,
    rows: int,
    *,
    quantized: bool,
    device: DeviceFacts,
    max_splits: int | None = None,
    tuning: Tuning | None = None,
) -> LinearPlan:
    """Return how to multiply ``rows`` tokens with a matrix.

    Args:
        rows: Tokens, 1 to ``MAX_ROWS``.
        quantized: Whether activations are int8.
        max_splits: Most splits that the reader accepts; None for any number.
        tuning: Measured choices of this device.

    Raises:
        UnsupportedModelError: No kernel multiplies such a matrix.
    """
    if quantized and _stays(form_of(weight), rows, device):
        variant, programs = imma_int8_apart(), device.multiprocessors
        return LinearPlan(
            variant=variant, splits=1, rows=rows, columns=weight.rows, staying=programs
        )
    return _plan_tiles(
        weight, rows, quantized=quantized, device=device, max_splits=max_splits, tuning=tuning
    )


def _stays(form: LinearWeight, rows: int, device: DeviceFacts) -> bool:
    """Whether programs that stay are the quickest: of wide batches, where each has several tiles.

    A 7B's head for 256 tokens takes 333 us for 462, for 128 tokens 217 for 236, on an H200.
    """
    variant = imma_int8_apart()
    if form.scheme != "int8" or rows < STAYING_ROWS or not variant.suits(device.target):
        return False
    tile, tokens = tile_of(variant)
    return -(-form.rows // tile) * -(-rows // tokens) >= STAYING_TILES * device.multiprocessors


def _plan_tiles(
    weight: LinearWeight,
    rows: int,
    *,
    quantized: bool,
    device: DeviceFacts,
    max_splits: int | None,
    tuning: Tuning | None,
) -> LinearPlan:
    """Return the measured choice, or the model's, among programs that take a tile each."""
    form = form_of(weight)
    limit = max_splits or SPLITS[-1]
    if tuning is not None:
        table = table_name(weight, rows, quantized=quantized)
        choice = tuning.lookup(table, f"{form.columns}x{form.rows}")
        chosen = _chosen(choice, form, rows, quantized) if choice is not None else None
        if chosen is not None and chosen.splits <= limit:
            return chosen
    return _modelled(form, rows, quantized, device, limit)


def plan_any_rows(
    weight: LinearWeight,
    rows: int,
    *,
    quantized: bool,
    device: DeviceFacts,
    max_splits: int | None = None,
    tuning: Tuning | None = None,
) -> LinearPlan:
    """Return how to multiply tokens so that the bits of each depend on no number of tokens.

    The sum is split as is best for ``ANY_ROWS`` tokens. Tiles of int8 activations may be as small
    as the tokens: products within a group are exact, and groups are added in one order by all of
    them. Other forms are those of ``ANY_ROWS`` tokens.

    Args:
        rows: Tokens, any number.
        quantized: See ``plan_linear``, as are the others.

    Raises:
        UnsupportedModelError: No kernel multiplies such a matrix.
    """
    choose = partial(
        _plan_tiles,
        weight,
        quantized=quantized,
        device=device,
        max_splits=max_splits,
        tuning=tuning,
    )
    plan = choose(ANY_ROWS)
    if plan.variant.kernel in (IMMA_FOUR_BIT, IMMA_INT8):
        # Of fewer tokens each thread adds up columns of its own: another order.
        least = most_few_rows(weight.scheme, weight.group_size) + 1
        plan = replace(plan, variant=choose(max(least, min(rows, ANY_ROWS))).variant)
    return replace(plan, rows=rows)


def candidates(weight: LinearWeight, rows: int, *, quantized: bool) -> tuple[LinearPlan, ...]:
    """Return the plans worth timing for a product.

    Raises:
        UnsupportedModelError: No kernel multiplies such a matrix.
    """
    return _plans(form_of(weight), rows, quantized)


def table_name(weight: LinearWeight, rows: int, *, quantized: bool) -> str:
    """Return the name of the tuning table, for example ``linear.int4.g128.a8.rows1``."""
    group = f".g{weight.group_size}" if weight.scheme in GROUPED_SCHEMES else ""
    bucket = 1 << (rows - 1).bit_length()
    return f"linear.{weight.scheme}{group}.{'a8' if quantized else 'a16'}.rows{bucket}"


def form_of(weight: LinearWeight) -> LinearWeight:
    """Return a matrix without its addresses, checked.

    Raises:
        UnsupportedModelError: Its scheme or its row length has no kernel.
    """
    known = (*GROUPED_SCHEMES, "int8", *PLAIN_SCHEMES)
    if weight.scheme not in known or weight.columns % STEP_COLUMNS:
        raise UnsupportedModelError(
            f"no kernel multiplies a matrix {weight.rows} x {weight.columns} in {weight.scheme}: "
            f"expected one of {', '.join(known)} and columns in multiples of {STEP_COLUMNS}",
            hint="Convert the model with --quant int8 or bf16, or serve it on the CPU.",
        )
    return replace(weight, weights=0, scales=0)


def forms_for(form: LinearWeight, rows: int, *, quantized: bool) -> tuple[Variant, ...]:
    """Return the compiled forms that can multiply ``rows`` tokens, preferred ones first."""
    if quantized:
        if rows <= most_few_rows(form.scheme, form.group_size):
            return decode_forms(form.scheme, form.group_size, min(rows, DECODE_ROWS))
        direct = _direct(form, rows, quantized)
        return (*direct, *imma_forms(form.scheme, form.group_size, rows))
    if form.scheme in PLAIN_SCHEMES and rows <= DECODE_ROWS:
        return decode_forms(form.scheme, 0, rows)
    return dot_forms(form.scheme, form.group_size, rows)


def _direct(form: LinearWeight, rows: int, quantized: bool) -> tuple[Variant, ...]:
    """Return the forms whose weights go to tensor cores directly, where rows are not too few."""
    if not quantized or rows <= most_few_rows(form.scheme, form.group_size):
        return ()
    return direct_forms(form.scheme, form.group_size, rows)


def most_few_rows(scheme: str, group: int) -> int:
    """Return the most tokens of int8 activations that are multiplied without tensor cores.

    Groups of 32 are too narrow for those. Codes of three bits are put together byte by byte for
    them: twice as long for eight tokens as all of the rest.
    """
    if group == 32:
        return ANY_ROWS * MAX_ROWS
    return 2 * DECODE_ROWS if scheme == "int3" else DECODE_ROWS


def tile_of(variant: Variant) -> tuple[int, int]:
    """Return the rows of the matrix and the tokens of one program."""
    constants = dict(variant.constants)
    if "R" in constants:
        return int(constants["R"]) * int(constants["T"]), int(constants["ROWS"])
    return int(constants["BN"]), int(constants["BM"])


def steps_of(variant: Variant, form: LinearWeight) -> int:
    """Return how many steps a program without splits takes along the columns."""
    constants = dict(variant.constants)
    step_columns = int(constants.get("BK", form.group_size or 128))
    if "R" in constants:
        step_columns = int(constants["C"]) * _piece_columns(form.scheme)
    return -(-form.columns // step_columns)


def _piece_columns(scheme: str) -> int:
    return 32 if scheme in GROUPED_SCHEMES else 16 if scheme == "int8" else 8


def _chosen(choice: Choice, form: LinearWeight, rows: int, quantized: bool) -> LinearPlan | None:
    """Return a measured plan; None where its kernel does not multiply such a matrix."""
    splits = int(choice.get("splits", 1))
    for variant in forms_for(form, rows, quantized=quantized):
        if variant.key == choice["variant"]:
            return LinearPlan(variant=variant, splits=splits, rows=rows, columns=form.rows)
    return None


@cache
def _modelled(
    form: LinearWeight, rows: int, quantized: bool, device: DeviceFacts, max_splits: int
) -> LinearPlan:
    """Return the plan that the model of the device takes for the fastest."""
    for variant in _direct(form, rows, quantized)[:1]:
        plan = LinearPlan(variant=variant, splits=1, rows=rows, columns=form.rows)
        splits = direct_splits(plan.grid[0], form.columns, device.multiprocessors, max_splits)
        # Rows of whole bytes in many tiles are read as fast by others.
        if variant.suits(device.target) and (splits > 1 or form.scheme != "int8"):
            return replace(plan, splits=splits)
    little_shared = device.shared_memory_optin_bytes <= LITTLE_SHARED_BYTES
    plans = [
        (_seconds(plan, form, device), order, plan)
        for order, plan in enumerate(_plans(form, rows, quantized))
        if plan.variant.kernel is not IMMA_DIRECT
        if plan.splits <= max_splits and not (little_shared and tile_of(plan.variant)[1] > 64)
    ]
    return min(plans, key=lambda entry: entry[:2])[2]


def _plans(form: LinearWeight, rows: int, quantized: bool) -> tuple[LinearPlan, ...]:
    """Return every form with every number of splits that leaves each at least two steps."""
    return tuple(
        LinearPlan(variant=variant, splits=splits, rows=rows, columns=form.rows)
        for variant in forms_for(form, rows, quantized=quantized)
        for splits in SPLITS
        if splits == 1 or splits * 2 <= steps_of(variant, form)
    )


def _seconds(plan: LinearPlan, form: LinearWeight, device: DeviceFacts) -> float:
    """Return the modelled time of a plan, in seconds."""
    costs = costs_on(device)
    multiprocessors = device.multiprocessors
    bandwidth = device.bandwidth_bytes_per_second or DEFAULT_BANDWIDTH
    constants = dict(plan.variant.constants)
    warps = plan.variant.num_warps
    rows, tokens = tile_of(plan.variant)
    few = "R" in constants
    held = costs.resident_warps if few else costs.resident_warps_batch
    if not few and tokens >= costs.wide_tokens:
        held = costs.resident_warps_wide
    resident = max(held // warps, 1)
    programs = plan.grid[0] * plan.grid[1] * plan.grid[2]
    each = programs / multiprocessors
    busiest = -(-programs // multiprocessors)
    if busiest > resident:  # later programs fill the gaps of earlier ones, but for the last ones
        busiest = int(each) + 1
    pieces = int(constants.get("R", 4)) * max(plan.variant.num_stages - 1, 1)
    in_flight = min(each, resident) * warps * device.warp_threads * 16 * pieces
    reads = plan.grid[2] * form.size_bytes / bandwidth / min(1.0, in_flight / costs.flight_bytes)
    work = tokens * costs.product_seconds
    if not few:
        work += costs.unpack_seconds + tokens * costs.input_seconds / rows
    reads += plan.grid[2] * form.rows * form.columns * work / multiprocessors
    steps = steps_of(plan.variant, form)
    uneven = -(-steps // plan.splits) * plan.splits / steps
    reads *= busiest / each * (1 + (uneven - 1) / 2)
    sums = plan.output_bytes * 2 / bandwidth
    return reads + sums + plan.splits * costs.split_seconds
