"""Chooses the forms for the products of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.experts.variants import (
    DIRECT_FORMATS,
    DIRECT_TILES,
    PAIR_TILES,
    UNSORTED_PAIRS,
    direct_form,
    like_gemv,
    unsorted_form,
)
from zse.kernels.experts.weight import STEP_COLUMNS
from zse.kernels.linear.plan import plan_linear
from zse.kernels.linear.weight import PLAIN_SCHEMES
from zse.records import record

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.kernels.experts.weight import StackedWeight
    from zse.kernels.variant import Variant

FEW_ROWS = 4
"""Tokens up to which each pair reads its expert's matrix for itself: few of them share one."""
ROUTED_ROWS = 8
"""Tokens up to which the norm that experts read chooses them."""
DIRECT_ROWS = 128
"""Tokens up to which those of an expert are multiplied with int8 activations together."""
FULL_DIRECT_PAIRS = (9, 14)
"""As below, for the tiles of ``DIRECT_TILES``."""
FULL_TILE_PAIRS = (24, 192)
"""Pairs that an expert has on average above which the next larger tile is the faster one."""


@record
class PairPlan:
    """How the products of a few tokens with their experts are computed."""

    variant: Variant
    splits: int
    pairs: int
    rows: int
    """Rows of one expert's matrix."""

    @property
    def tile_rows(self) -> int:
        sizes = dict(self.variant.constants)
        return int(sizes["R"]) * int(sizes["T"])

    @property
    def output_bytes(self) -> int:
        """Bytes of the float32 [splits, pairs, rows] that it writes."""
        return self.splits * self.pairs * self.rows * 4


def plan_pairs(
    weight: StackedWeight, pairs: int, device: DeviceFacts, *, max_splits: int | None = None
) -> PairPlan:
    """Return how the matrices of each pair are multiplied.

    They are read as one matrix of all their rows would be, so the plan for that is taken.

    Raises:
        UnsupportedModelError: No kernel multiplies such matrices.
    """
    scheme, group = weight.stack.scheme, weight.stack.group_size
    like = plan_linear(
        weight.of(pairs), 1, quantized=scheme not in PLAIN_SCHEMES, device=device,
        max_splits=max_splits,
    )  # fmt: skip
    variant = like_gemv(scheme, group, like.variant)
    return PairPlan(variant=variant, splits=like.splits, pairs=pairs, rows=weight.rows)


def plan_direct(
    weight: StackedWeight, rows: int, pairs: int, groups: int, target: str
) -> Variant | None:
    """Return how so many tokens are multiplied together by int8 activations; None for not so.

    Args:
        pairs: Of all tokens.
        groups: Experts that may have some.
    """
    scheme = (weight.stack.scheme, weight.stack.group_size)
    if scheme not in DIRECT_FORMATS or rows > DIRECT_ROWS or weight.columns % STEP_COLUMNS:
        return None
    form = unsorted_form(weight.stack.scheme)
    if pairs > UNSORTED_PAIRS:
        larger = sum(pairs / groups > limit for limit in FULL_DIRECT_PAIRS)
        form = direct_form(weight.stack.scheme, DIRECT_TILES[larger])
    return form if form.suits(target) else None


def pair_tile(pairs: int, groups: int) -> int:
    """Return how many pairs of one expert a program multiplies together.

    What an expert's last tile lacks is computed for nothing, so tiles are well below the average.
    """
    average = pairs / groups
    larger = sum(average > limit for limit in FULL_TILE_PAIRS)
    return PAIR_TILES[larger]
