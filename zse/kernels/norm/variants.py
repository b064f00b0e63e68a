"""The compiled forms of ``norm``."""

from __future__ import annotations

from zse.errors import UnsupportedModelError
from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.norm.triton.kernel"
ROW_GROUPS = (1, 4, 8, 16, 32, 64, 128)
"""Groups of 128 columns that one program can hold."""
FAMILY_ROW_GROUPS = (16, 32, 64, 128)
"""The same where a row needs more than RMSNorm."""
STREAM_ROW_GROUPS = (4, 8, 16)
"""The same of encoders, which are narrow."""

_SOURCES = (
    pointer("residual", "fp32"),
    pointer("added", "fp32"),
    pointer("row_index", "i32"),
    pointer("norm", "fp32"),
)
_RESULTS = (
    pointer("outputs", "i8"),
    pointer("scales", "fp32"),
    pointer("sums", "fp32"),
    number("hidden", aligned=True),
    number("added_rows"),
    number("splits"),
)
RESIDUAL_NORM = Kernel(
    name="norm.residual_norm",
    module=MODULE,
    function="residual_norm",
    arguments=(*_SOURCES, *_RESULTS, number("epsilon", "fp32")),
)
FAMILY_NORM = Kernel(
    name="norm.family_norm",
    module=MODULE,
    function="family_norm",
    arguments=(
        *_SOURCES,
        pointer("norm_bias", "fp32"),
        pointer("added_bias", "fp32"),
        *_RESULTS,
        number("gathers"),
        number("has_norm_bias"),
        number("has_added_bias"),
        number("added_scale", "fp32"),
        number("output_scale", "fp32"),
        number("epsilon", "fp32"),
    ),
)
POST_NORM = Kernel(
    name="norm.post_norm",
    module=MODULE,
    function="post_norm",
    arguments=(
        *_SOURCES,
        pointer("added_bias", "fp32"),
        pointer("post_norm", "fp32"),
        pointer("stream_scale", "fp32"),
        *_RESULTS,
        number("gathers"),
        number("has_added_bias"),
        number("has_post_norm"),
        number("has_stream_scale"),
        number("added_scale", "fp32"),
        number("output_scale", "fp32"),
        number("epsilon", "fp32"),
        number("post_epsilon", "fp32"),
    ),
)
STREAM_NORM = Kernel(
    name="norm.stream_norm",
    module=MODULE,
    function="stream_norm",
    arguments=(
        pointer("residual", "fp32"),
        pointer("added", "fp32"),
        pointer("norm", "fp32"),
        pointer("norm_bias", "fp32"),
        pointer("added_bias", "fp32"),
        pointer("outputs", "bf16"),
        number("hidden", aligned=True),
        number("added_rows"),
        number("splits"),
        number("has_norm_bias"),
        number("has_added_bias"),
        number("added_scale", "fp32"),
        number("epsilon", "fp32"),
    ),
)
HEADS_NORM = Kernel(
    name="norm.heads_norm",
    module=MODULE,
    function="heads_norm",
    arguments=(
        pointer("sums", "fp32"),
        pointer("bias", "fp32"),
        pointer("q_norm", "fp32"),
        pointer("k_norm", "fp32"),
        number("sum_rows"),
        number("splits"),
        number("has_bias"),
        number("q_columns", aligned=True),
        number("k_columns", aligned=True),
        number("all_columns", aligned=True),
        number("epsilon", "fp32"),
    ),
)


def residual_norm_variant(
    groups: int, *, quantized: bool, gather: bool, num_warps: int = 0
) -> Variant:
    """Return the form for rows of ``groups`` groups: a warp for each group, up to 32."""
    return variant(
        RESIDUAL_NORM,
        num_warps=num_warps or min(groups, 32),
        types=None if quantized else {"outputs": "*bf16"},
        GROUPS=groups,
        GATHER=gather,
    )


def family_norm_variant(groups: int, *, quantized: bool, layer: bool) -> Variant:
    """Return the form for rows of ``groups`` groups: RMSNorm, or LayerNorm."""
    return variant(
        FAMILY_NORM,
        num_warps=min(groups, 32),
        types=None if quantized else {"outputs": "*bf16"},
        GROUPS=groups,
        LAYER=layer,
    )


def post_norm_variant(groups: int, *, quantized: bool, normed: bool) -> Variant:
    """Return the form for rows of ``groups`` groups that stores their norm, or themselves."""
    return variant(
        POST_NORM,
        num_warps=min(groups, 32),
        types=None if quantized else {"outputs": "*bf16"},
        GROUPS=groups,
        NORM="rms" if normed else "none",
    )


def stream_norm_variant(groups: int) -> Variant:
    """Return the form for rows of ``groups`` groups."""
    return variant(STREAM_NORM, num_warps=min(groups, 32), GROUPS=groups)


def heads_norm_variant(groups: int) -> Variant:
    return variant(HEADS_NORM, num_warps=min(groups, 32), GROUPS=groups)


def row_groups_for(hidden: int, available: tuple[int, ...] = ROW_GROUPS) -> int:
    """Return the smallest number of groups that holds a row of ``hidden`` columns.

    Raises:
        UnsupportedModelError: The row is too long, or its length is not a multiple of 16.
    """
    needed = -(-hidden // ACTIVATION_GROUP)
    if hidden % 16 or needed > available[-1] or hidden < 1:
        raise UnsupportedModelError(
            f"hidden size {hidden}; the norm kernel takes multiples of 16 up to "
            f"{available[-1] * ACTIVATION_GROUP}"
        )
    return next(groups for groups in available if groups >= needed)


VARIANTS: tuple[Variant, ...] = (
    *(
        residual_norm_variant(groups, quantized=quantized, gather=gather)
        for groups in ROW_GROUPS
        for quantized in (True, False)
        for gather in (False, True)
    ),
    *(
        family_norm_variant(groups, quantized=quantized, layer=layer)
        for groups in FAMILY_ROW_GROUPS
        for quantized in (True, False)
        for layer in (False, True)
    ),
    *(
        post_norm_variant(groups, quantized=quantized, normed=normed)
        for groups in FAMILY_ROW_GROUPS
        for quantized in (True, False)
        for normed in (False, True)
    ),
    *(heads_norm_variant(groups) for groups in FAMILY_ROW_GROUPS),
    *(stream_norm_variant(groups) for groups in STREAM_ROW_GROUPS),
)
