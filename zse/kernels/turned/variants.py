"""The compiled forms of ``turned_norm`` and ``turned_silu``."""

from __future__ import annotations

from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.turned.triton.kernel"
_OUTPUTS = (pointer("outputs", "i8"), pointer("scales", "fp32"), number("rows"))
TURNED_NORM = Kernel(
    name="turned.norm",
    module=MODULE,
    function="turned_norm",
    arguments=(
        pointer("residual", "fp32"),
        pointer("added", "fp32"),
        pointer("norm", "fp32"),
        *_OUTPUTS,
        number("hidden", aligned=True),
        number("added_rows"),
        number("splits"),
        number("epsilon", "fp32"),
    ),
)
TURNED_SILU = Kernel(
    name="turned.silu",
    module=MODULE,
    function="turned_silu",
    arguments=(
        pointer("inputs", "bf16"),
        *_OUTPUTS,
        number("width", aligned=True),
    ),
)
NORM_GROUPS = (16, 32, 64)
"""Groups of 128 columns of the rows that a program holds."""
SILU_GROUPS = (32, 64, 128, 256)
"""Above 128 they are held as 128 and the rest."""
MOST_HELD = 128
WIDE_TARGET, MOST_ELSEWHERE = "sm_90", 64
"""Architecture whose registers hold gates of more groups than so many."""


def groups_for(columns: int, available: tuple[int, ...]) -> int:
    """Return the smallest number of groups that holds a row; 0 where none does.

    Rows are whole groups.
    """
    if columns % ACTIVATION_GROUP:
        return 0
    needed = columns // ACTIVATION_GROUP
    return next((groups for groups in available if groups >= needed), 0)


def turned_norm_variant(groups: int, *, num_warps: int = 0) -> Variant:
    """Return the form for rows of up to so many groups."""
    return variant(TURNED_NORM, num_warps=num_warps or min(groups // 4, 16), GROUPS=groups)


def turned_silu_variant(groups: int, *, num_warps: int = 0) -> Variant:
    """Return the form for rows of up to so many groups."""
    held = min(groups, MOST_HELD)
    return variant(
        TURNED_SILU, num_warps=num_warps or min(held // 8, 16), GROUPS=held, REST=groups - held
    )


VARIANTS: tuple[Variant, ...] = (
    *(turned_norm_variant(groups) for groups in NORM_GROUPS),
    *(turned_silu_variant(groups) for groups in SILU_GROUPS),
)
