"""How to launch ``embed``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.embed.variants import BLOCK, embed_variant
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher


@record
class EmbedTable:
    """Where an embedding lies, as the file stores it."""

    scheme: str
    """``bf16 fp16 fp32 int8 int4 nf4``."""
    weights: int
    """Address of values [V, H], of int8 codes [V, H] or of packed codes [V, H / 2]."""
    scales: int = 0
    """Address of float32 [V] (int8), int32 scale and zero [V, H / G] (int4) or float16 absmax
    [V, H / G] (nf4)."""
    group_size: int = 0
    """G: columns that share a scale, for int4 and nf4."""


@record
class Placing:
    """Rows that are added to a token's own: that of its position, and that of its type."""

    position_rows: int = 0
    """Address of float32 [positions, hidden]; 0 for none."""
    first_position: int = 0
    """Row of position 0."""
    type_rows: int = 0
    """Address of float32 [types, hidden]; 0 for none."""
    decode_rows: int = 0
    """Rows whose positions lie in an array of their own."""
    positions: int = 0
    """Address of int32 [decode_rows]."""
    prefill_positions: int = 0
    """Address of int32 of the rows behind them."""
    types: int = 0
    """Address of int32 [rows]; 0 where all tokens are of the first type."""


def embed(
    launcher: Launcher,
    table: EmbedTable,
    *,
    tokens_address: int,
    slots_address: int,
    last_tokens_address: int,
    rows: int,
    hidden: int,
    residual_address: int,
    scale: float = 1.0,
    placing: Placing | None = None,
) -> None:
    """Store the embedding of each row's token as float32.

    Args:
        tokens_address: int32 [rows]; a negative id stands for ``last_tokens[slots[row]]``.
        slots_address: int32 [rows]; read only where the token is negative.
        last_tokens_address: int32, indexed by slot; likewise.
        hidden: Columns, a multiple of 16.
        residual_address: float32 [rows, hidden].
        scale: Multiplies the token's own row.
        placing: What is added to it.

    Raises:
        UnsupportedModelError: No kernel reads such a table.
    """
    if hidden % 16:
        raise UnsupportedModelError(f"hidden size {hidden}; expected a multiple of 16")
    scaled = scale != 1.0
    form = embed_variant(table.scheme, table.group_size, scaled=scaled, placed=placing is not None)
    arguments: tuple[int | float, ...] = (hidden, scale) if scaled else (hidden,)
    if placing is not None:
        arguments = _placed(placing, hidden, scale)
    launcher.launch(
        form,
        (rows, -(-hidden // BLOCK), 1),
        table.weights,
        table.scales,
        tokens_address,
        slots_address,
        last_tokens_address,
        residual_address,
        *arguments,
    )


def _placed(placing: Placing, hidden: int, scale: float) -> tuple[int | float, ...]:
    """Return the arguments of ``embed_placed`` from its positions on."""
    flags = (placing.position_rows != 0, placing.type_rows != 0, placing.types != 0)
    return (
        placing.positions,
        placing.prefill_positions,
        placing.types,
        placing.position_rows,
        placing.type_rows,
        hidden,
        scale,
        placing.decode_rows,
        placing.first_position,
        *map(int, flags),
    )
