"""How to launch gates that leave their product turned. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.turned.variants import (
    GATES,
    GATES_EXTRA,
    GATES_GROUPS,
    REST_GROUPS,
    gates_variant,
    round_variant,
)
from zse.units import align_up

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Turned
    from zse.kernels.variant import Variant

GATES_TOKENS = 128
"""Tokens of a tile."""
EXTRA_ROUND = 1.3
"""Time of a round of tiles that take columns beside their own, in that of others: on an H200 gates
of a 7B for 256 rows take 70 us for 81; for 512, in four rounds for five, as long."""
_ALIGNMENT = 256


def takes_gates(width: int, target: str) -> bool:
    """Whether gates of so many columns can leave their product turned, on an architecture."""
    is_whole = width % ACTIVATION_GROUP == 0
    return target in GATES.targets and is_whole and width // ACTIVATION_GROUP <= GATES_GROUPS


def gates_bytes(rows: int, width: int) -> int:
    """Return the bytes of what ``turned_gates`` leaves for ``round_gates``."""
    return align_up(rows * width * 2, _ALIGNMENT) + rows * (width // ACTIVATION_GROUP) * 4


def gates_tiles(groups: int, tokens: int, processors: int) -> int:
    """Return how many groups of gates have tiles of their own, in the fewest rounds of programs.

    Columns of the others are divided among these tiles. Fewer tiles take longer, each: so all
    groups have one where rounds are nearly as full, or many.
    """
    tiles_m = -(-tokens // GATES_TOKENS)
    rounds = -(-tiles_m * groups // processors)
    tiles = (rounds - 1) * processors // tiles_m
    rest = groups - tiles
    fits = rest * ACTIVATION_GROUP <= tiles * GATES_EXTRA and rest <= REST_GROUPS[-1]
    return tiles if fits and (rounds - 1) * EXTRA_ROUND < rounds else groups


def turned_gates(
    launcher: Launcher,
    inputs: Turned,
    weights: Turned,
    address: int,
    *,
    made_for: int = 0,
    tuned: Variant | None = None,
) -> None:
    """Leave silu(gate) * up of a joined matrix [2 * width, K], turned, for ``round_gates``.

    Args:
        inputs: Activations [T, K].
        weights: The matrix, rows of gates, then rows of ups: what ``turn_matrix`` wrote.
        address: Where ``gates_bytes`` are.
        made_for: Tokens that columns are divided for, where the bits of a token may not depend on
            how many there are; 0 divides them for these.
        tuned: Another compiled form to use, when forms are compared.
    """
    width = weights.rows // 2
    groups = width // ACTIVATION_GROUP
    tiles = gates_tiles(groups, made_for or inputs.rows, launcher.device.multiprocessors)
    programs = -(-inputs.rows // GATES_TOKENS) * tiles
    launcher.launch(
        tuned or gates_variant(extra=GATES_EXTRA if tiles < groups else 0),
        (min(programs, launcher.device.multiprocessors), 1, 1),
        inputs.codes,
        inputs.scales,
        weights.codes,
        weights.scales,
        address,
        _maxima(address, inputs.rows, width),
        inputs.rows,
        groups,
        tiles,
        weights.columns // ACTIVATION_GROUP,
    )


def round_gates(
    launcher: Launcher,
    address: int,
    output: Turned,
    *,
    made_for: int = 0,
    tuned: Variant | None = None,
) -> None:
    """Round what ``turned_gates`` left at an address; it may lie where that one's inputs were."""
    groups = output.columns // ACTIVATION_GROUP
    tiles = gates_tiles(groups, made_for or output.rows, launcher.device.multiprocessors)
    rest = next((held for held in (0, *REST_GROUPS) if held >= groups - tiles), 0)
    form = tuned or round_variant(rest=rest)
    turned_columns = tiles * ACTIVATION_GROUP
    columns = int(dict(form.constants)["COLUMNS"])
    launcher.launch(
        form,
        (output.rows, -(-turned_columns // columns), 1),
        address,
        _maxima(address, output.rows, output.columns),
        output.codes,
        output.scales,
        output.columns,
        turned_columns,
    )


def _maxima(address: int, rows: int, width: int) -> int:
    """Return the address of float32 [rows, width / 128]."""
    return address + align_up(rows * width * 2, _ALIGNMENT)
