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
GATES = Kernel(
    name="turned.gates",
    module="zse.kernels.turned.triton.gates",
    function="turned_gates",
    arguments=(
        pointer("values", "i8"),
        pointer("token_scales", "fp32"),
        pointer("weights", "i8"),
        pointer("row_scales", "fp32"),
        pointer("outputs", "bf16"),
        pointer("maxima", "fp32"),
        number("tokens"),
        number("groups"),
        number("tiles"),
        number("steps"),
    ),
    targets=("sm_90",),
)
ROUND = Kernel(
    name="turned.round",
    module=MODULE,
    function="round_gates",
    arguments=(
        pointer("inputs", "bf16"),
        pointer("maxima", "fp32"),
        pointer("outputs", "i8"),
        pointer("scales", "fp32"),
        number("width", aligned=True),
        number("turned_columns", aligned=True),
    ),
)
NORM_GROUPS = (16, 32, 64)
"""Groups of 128 columns of the rows that a program holds."""
SILU_GROUPS = (32, 64, 128, 256)
"""Above 128 they are held as 128 and the rest."""
MOST_HELD = 128
GATES_GROUPS = 256
"""Most groups of rows of gates whose product leaves them turned."""
GATES_EXTRA, REST_GROUPS = 16, (16, 32)
"""Columns that a tile of gates may take beside its group; groups that are made of such columns."""
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
    return variant(TURNED_NORM, num_warps=num_warps or min(groups // 2, 16), GROUPS=groups)


def turned_silu_variant(groups: int, *, num_warps: int = 0) -> Variant:
    """Return the form for rows of up to so many groups."""
    held = min(groups, MOST_HELD)
    return variant(
        TURNED_SILU, num_warps=num_warps or min(held // 8, 16), GROUPS=held, REST=groups - held
    )


def gates_variant(*, extra: int = 0, stages: int = 3, grouped: int = 16) -> Variant:
    """Return the form of gates.

    Args:
        extra: Columns of groups without a tile that each tile takes beside its own.
        stages: Steps on their way.
        grouped: Tiles of tokens that share one of weights in the cache.
    """
    return variant(GATES, num_stages=stages, EXTRA=extra, GROUPED=grouped, STAGES=stages)


def round_variant(*, rest: int = 0, columns: int = 4096, num_warps: int = 4) -> Variant:
    """Return the form that rounds gates, by programs of so many columns.

    Up to ``rest`` groups of a row, 0, 16 or 32, are still to be turned.
    """
    return variant(ROUND, num_warps=num_warps, GROUPS=GATES_GROUPS, REST=rest, COLUMNS=columns)


VARIANTS: tuple[Variant, ...] = (
    *(turned_norm_variant(groups) for groups in NORM_GROUPS),
    *(turned_silu_variant(groups) for groups in SILU_GROUPS),
    *(gates_variant(extra=extra) for extra in (0, GATES_EXTRA)),
    *(round_variant(rest=rest) for rest in (0, *REST_GROUPS)),
)
