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
) -> None:
    """Store the embedding of each row's token as float32.

    Args:
        tokens_address: int32 [rows]; a negative id stands for ``last_tokens[slots[row]]``.
        slots_address: int32 [rows]; read only where the token is negative.
        last_tokens_address: int32, indexed by slot; likewise.
        hidden: Columns, a multiple of 16.
        residual_address: float32 [rows, hidden].

    Raises:
        UnsupportedModelError: No kernel reads such a table.
    """
    if hidden % 16:
        raise UnsupportedModelError(f"hidden size {hidden}; expected a multiple of 16")
    scaled = scale != 1.0
    launcher.launch(
        embed_variant(table.scheme, table.group_size, scaled=scaled),
        (rows, -(-hidden // BLOCK), 1),
        table.weights,
        table.scales,
        tokens_address,
        slots_address,
        last_tokens_address,
        residual_address,
        hidden,
        *((scale,) if scaled else ()),
    )
