"""How to launch ``rope_table`` and ``rope_store``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import check_head_dim
from zse.kernels.rope_store.variants import (
    HEADS,
    TABLE_BLOCK,
    rope_store_variant,
    rope_table_variant,
)

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import BlockTables, HeadInputs, HeadShape, PagedCache


def rope_table(
    launcher: Launcher,
    *,
    inverse_frequencies_address: int,
    table_address: int,
    num_positions: int,
    head_dim: int,
    factor: float = 1.0,
) -> None:
    """Make the table of cosines and sines.

    Args:
        inverse_frequencies_address: float32 [head_dim / 2], radians a position.
        table_address: float32 [num_positions, head_dim]: cosines, then sines, times ``factor``.
        factor: What YaRN multiplies cosines and sines by.

    Raises:
        UnsupportedModelError: No kernel takes the head width.
    """
    check_head_dim(head_dim, quantized=False)
    launcher.launch(
        rope_table_variant(head_dim),
        (-(-num_positions // TABLE_BLOCK), 1, 1),
        inverse_frequencies_address,
        table_address,
        num_positions,
        factor,
    )


def rope_store(
    launcher: Launcher,
    inputs: HeadInputs,
    shape: HeadShape,
    cache: PagedCache,
    tables: BlockTables,
    *,
    table_rows_address: int,
    queries_address: int,
) -> None:
    """Rotate queries and keys; store queries, write keys and values to the cache.

    Args:
        table_rows_address: int32 [rows]: which row of ``tables`` is the row's sequence.
        queries_address: bfloat16 [rows, num_heads, head_dim]; rotated, not scaled.

    Raises:
        UnsupportedModelError: No kernel takes the head width.
    """
    check_head_dim(shape.head_dim, quantized=cache.quantized)
    all_heads = shape.num_heads + 2 * shape.kv_heads
    launcher.launch(
        rope_store_variant(shape.head_dim, quantized=cache.quantized, head_norm=inputs.q_norm != 0),
        (inputs.qkv.rows, -(-all_heads // HEADS), 1),
        *inputs.addresses,
        table_rows_address,
        tables.address,
        queries_address,
        *cache.addresses,
        *inputs.numbers,
        tables.stride,
        shape.num_heads,
        shape.kv_heads,
        inputs.epsilon,
    )
