"""How to launch the kernels of ``turned``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.turned.variants import (
    MOST_ELSEWHERE,
    NORM_GROUPS,
    SILU_GROUPS,
    WIDE_TARGET,
    groups_for,
    turned_norm_variant,
    turned_silu_variant,
)

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Partials, Plain, Turned
    from zse.kernels.variant import Variant

WARPS_AT_ONCE = 32
"""Of programs on one multiprocessor: as many as have registers."""
MOST_SILU_ROWS = 256


def takes_norm(hidden: int) -> bool:
    """Whether there is a form for rows of the residual stream of so many columns."""
    return groups_for(hidden, NORM_GROUPS) > 0


def takes_silu(width: int, rows: int, target: str) -> bool:
    """Whether one pass over gates of so many columns and rows is quicker than two.

    It is where a form of the kernel fits the architecture's registers and rows are few: of a 7B's
    on an H200, 128 rows take 14 us instead of 22, but 2,048 take 203 instead of 150
    (``scripts/bench/prompt_kernels.py``).
    """
    if rows > MOST_SILU_ROWS:
        return False
    groups = groups_for(width, SILU_GROUPS)
    return groups > 0 and (groups <= MOST_ELSEWHERE or target == WIDE_TARGET)


def turned_norm(
    launcher: Launcher,
    residual_address: int,
    norm_address: int,
    epsilon: float,
    output: Turned,
    *,
    added: Partials | None = None,
    tuned: Variant | None = None,
) -> None:
    """Add pending sums to the residual stream, then store its RMSNorm, turned.

    Args:
        residual_address: float32 [rows, hidden]; changed in place where something is added.
        norm_address: float32 [hidden].
        output: As many columns as ``takes_norm``.
        added: Summands to add to the stream first, [splits, rows, hidden].
        tuned: Another compiled form to use, when forms are compared.
    """
    form = tuned or turned_norm_variant(groups_for(output.columns, NORM_GROUPS))
    launcher.launch(
        form,
        _grid(launcher, form, output.rows),
        residual_address,
        added.values if added else 0,
        norm_address,
        output.codes,
        output.scales,
        output.rows,
        output.columns,
        added.split_rows if added else output.rows,
        added.splits if added else 0,
        epsilon,
    )


def turned_silu(
    launcher: Launcher, inputs: Plain, output: Turned, *, tuned: Variant | None = None
) -> None:
    """Store silu(gate) * up, turned.

    Args:
        inputs: [rows, 2 * width], gate columns, then up columns.
        output: As many columns as ``takes_silu``.
        tuned: Another compiled form to use, when forms are compared.
    """
    form = tuned or turned_silu_variant(groups_for(output.columns, SILU_GROUPS))
    launcher.launch(
        form,
        _grid(launcher, form, output.rows),
        inputs.values,
        output.codes,
        output.scales,
        output.rows,
        output.columns,
    )


def _grid(launcher: Launcher, form: Variant, rows: int) -> tuple[int, int, int]:
    at_once = max(1, WARPS_AT_ONCE // form.num_warps)
    return (min(rows, launcher.device.multiprocessors * at_once), 1, 1)
