"""The compiled forms of ``route``."""

from __future__ import annotations

from zse.errors import UnsupportedModelError
from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.route.rules import MAX_EXPERTS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.route.triton"
CHOICE_EXPERTS = (128, MAX_EXPERTS)
"""Experts that one warp holds the scores of."""
ROW_GROUPS = (8, 16, 32, 64)
"""Groups of 128 columns of a row whose norm is made with its routing."""
AT_ONCE = 4
"""Rows of the router that a program of such a norm reads."""
CHUNK = 1024
"""Pairs that a program of the sort looks at together."""

_RULES = (
    number("num_experts"),
    number("num_chosen"),
    number("scoring"),
    number("num_groups"),
    number("groups_chosen"),
    number("scores_in_group"),
    number("normalizes"),
    number("scale", "fp32"),
)
_CHOICE = (pointer("experts", "i32"), pointer("expert_weights", "fp32"))
_EXTRAS = (number("has_selection_bias"), number("has_expert_scale"))
CHOOSE = Kernel(
    name="route.choose",
    module=f"{MODULE}.choose",
    function="choose",
    arguments=(
        pointer("logits", "fp32"),
        pointer("bias", "fp32"),
        pointer("gate_logits", "fp32"),
        pointer("selection_bias", "fp32"),
        pointer("expert_scale", "fp32"),
        *_CHOICE,
        number("split_rows"),
        number("splits"),
        number("gate_split_rows"),
        number("gate_splits"),
        number("has_bias"),
        number("has_gate"),
        number("shared_slots"),
        *_EXTRAS,
        *_RULES,
    ),
)
GROUP = Kernel(
    name="route.group",
    module=f"{MODULE}.group",
    function="group",
    arguments=(
        pointer("chosen", "i32"),
        pointer("order", "i32"),
        pointer("starts", "i32"),
        number("pairs"),
        number("experts"),
    ),
)
NORM_ROUTE = Kernel(
    name="route.norm_route",
    module=f"{MODULE}.few",
    function="norm_route",
    arguments=(
        pointer("residual", "fp32"),
        pointer("added", "fp32"),
        pointer("added_bias", "fp32"),
        pointer("norm", "fp32"),
        pointer("router_norm", "fp32"),
        pointer("router", "bf16"),
        pointer("router_bias", "fp32"),
        pointer("selection_bias", "fp32"),
        pointer("expert_scale", "fp32"),
        pointer("outputs", "i8"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        pointer("logits", "fp32"),
        pointer("counters", "i32"),
        *_CHOICE,
        number("gate_offset", "i64", aligned=True),
        number("hidden", aligned=True),
        number("added_rows"),
        number("splits"),
        number("has_added_bias"),
        number("has_router_bias"),
        number("has_gate"),
        number("shared_slots"),
        *_EXTRAS,
        *_RULES,
        number("added_scale", "fp32"),
        number("epsilon", "fp32"),
    ),
)


def choose_variant(experts: int) -> Variant:
    """Return the form for so many experts: a warp for each row.

    Raises:
        UnsupportedModelError: There are too many.
    """
    if experts > MAX_EXPERTS:
        raise UnsupportedModelError(
            f"a router of {experts} experts; the kernels choose among up to {MAX_EXPERTS}"
        )
    held = next(held for held in CHOICE_EXPERTS if held >= experts)
    return variant(CHOOSE, num_warps=1, EXPERTS=held)


def group_variant() -> Variant:
    """Return the form that sorts pairs by their experts."""
    return variant(GROUP, num_warps=4, CHUNK=CHUNK)


def fits_norm_route(hidden: int) -> bool:
    """Return whether a kernel makes the norm of such a row together with its routing."""
    return hidden % 32 == 0 and hidden <= ROW_GROUPS[-1] * ACTIVATION_GROUP


def norm_route_variant(hidden: int, *, quantized: bool) -> Variant:
    """Return the form for rows of ``hidden`` columns that ``fits_norm_route`` accepts."""
    groups = next(held for held in ROW_GROUPS if held * ACTIVATION_GROUP >= hidden)
    return variant(
        NORM_ROUTE,
        num_warps=min(groups, 16),
        types=None if quantized else {"outputs": "*bf16"},
        GROUPS=groups,
        AT_ONCE=AT_ONCE,
        EXPERTS=MAX_EXPERTS,
    )


VARIANTS: tuple[Variant, ...] = (
    *(choose_variant(experts) for experts in CHOICE_EXPERTS),
    group_variant(),
    *(
        norm_route_variant(groups * ACTIVATION_GROUP, quantized=quantized)
        for groups in ROW_GROUPS
        for quantized in (True, False)
    ),
)
