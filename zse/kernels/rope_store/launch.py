"""How to launch ``rope_table`` and ``rope_store``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.layout import FAMILY_HEAD_DIMS, HEAD_DIMS, TEXT_HEAD_DIMS, check_head_dim
from zse.kernels.rope_store.variants import (
    HEADS,
    MOST_ROTARY_DIM,
    TABLE_BLOCK,
    any_rope_table_variant,
    family_rope_store_variant,
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
    rotary_dim: int,
    factor: float = 1.0,
) -> None:
    """Make the table of cosines and sines.

    Args:
        inverse_frequencies_address: float32 [rotary_dim / 2], radians a position.
        table_address: float32 [num_positions, rotary_dim]: cosines, then sines, times ``factor``.
        rotary_dim: Columns of a head that turn.
        factor: What YaRN multiplies cosines and sines by.

    Raises:
        UnsupportedModelError: No kernel takes so many columns.
    """
    if rotary_dim % 2 or not 0 < rotary_dim <= MOST_ROTARY_DIM:
        raise UnsupportedModelError(
            f"{rotary_dim} columns of a head turn; expected an even number up to {MOST_ROTARY_DIM}"
        )
    is_usual = rotary_dim in HEAD_DIMS
    launcher.launch(
        rope_table_variant(rotary_dim) if is_usual else any_rope_table_variant(),
        (-(-num_positions // TABLE_BLOCK), 1, 1),
        inverse_frequencies_address,
        table_address,
        num_positions,
        *(() if is_usual else (rotary_dim // 2,)),
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
        queries_address: bfloat16 [rows, num_heads, head_dim]; rotated, not scaled. Their columns
            are in the order of the cached keys, which is the kernels' own.

    Raises:
        UnsupportedModelError: No kernel takes the head width.
    """
    family = inputs.family_numbers(shape)
    taken: tuple[int, ...] = HEAD_DIMS
    if family:
        taken = FAMILY_HEAD_DIMS if inputs.q_norm else (*FAMILY_HEAD_DIMS, *TEXT_HEAD_DIMS)
    check_head_dim(shape.head_dim, cache=cache.dtype, taken=taken)
    make = family_rope_store_variant if family else rope_store_variant
    stored = 2 * shape.kv_heads if shape.stores else 0
    launcher.launch(
        make(shape.head_dim, cache=cache.dtype, head_norm=inputs.q_norm != 0),
        (inputs.qkv.rows, -(-(shape.num_heads + stored) // HEADS), 1),
        *inputs.addresses,
        table_rows_address,
        tables.address,
        queries_address,
        *cache.addresses,
        *inputs.numbers,
        int(inputs.key_factors != 0),
        tables.stride,
        shape.num_heads,
        shape.kv_heads,
        *family,
        inputs.epsilon,
        *((inputs.value_epsilon,) if family else ()),
    )
