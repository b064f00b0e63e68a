"""How to launch the kernels of latent attention. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.attention.variants import PREFILL_QUERIES
from zse.kernels.latent.variants import (
    COLUMNS,
    ELEMENTS,
    FEW_ROWS,
    KEY_DIM,
    MANY_ROWS,
    MOST_QUERY_RANK,
    RANK,
    TURNING,
    VALUE_DIM,
    AttendForm,
    attend_form,
    decode_variant,
    join_variant,
    prefill_variant,
    query_norm_variant,
    store_variant,
    values_variant,
    wide_queries_variant,
)
from zse.kernels.layout import Quantized, activation_addresses
from zse.records import record

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.kernels.attention.launch import PrefillTiles
    from zse.kernels.latent.shape import LatentShape
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, BlockTables, PagedCache, Partials
    from zse.kernels.linear.weight import LinearWeight

MAX_SPLITS = 64
WIDE_SHARED_BYTES = 200 << 10
"""Shared memory of a multiprocessor from which on programs take 64 queries at a time."""
PROGRAMS_A_MULTIPROCESSOR = 1
"""A program of 64 heads has a multiprocessor's registers to itself."""


def check_latent(shape: LatentShape) -> None:
    """Refuse widths that no kernel takes.

    Raises:
        UnsupportedModelError: There are no forms for them.
    """
    widths = (shape.rank, shape.turning, shape.key_dim, shape.value_dim)
    if widths != (RANK, TURNING, KEY_DIM, VALUE_DIM):
        raise UnsupportedModelError(
            f"a latent of {shape.rank} columns beside {shape.turning} that turn, for keys of "
            f"{shape.key_dim} and values of {shape.value_dim}; expected {RANK} beside {TURNING}, "
            f"for {KEY_DIM} and {VALUE_DIM}"
        )
    if shape.query_rank > MOST_QUERY_RANK or shape.query_rank % 16:
        raise UnsupportedModelError(
            f"a latent of queries of {shape.query_rank} columns; expected a multiple of 16 up to "
            f"{MOST_QUERY_RANK}"
        )


@record
class LatentRows:
    """Rows that are worked on together: one token of a sequence each, or those of prompts."""

    count: int
    cosines_sines: int
    """Address of the table that ``rope_table`` made."""
    positions: int
    """Address of int32 [count]."""
    table_rows: int = 0
    """Address of int32 [count]: which row of the block tables is a row's sequence; 0: its own."""


def latent_store(
    launcher: Launcher,
    shape: LatentShape,
    joined: Partials,
    rows: LatentRows,
    cache: PagedCache,
    tables: BlockTables,
    *,
    norm_address: int,
    epsilon: float,
    bias_address: int = 0,
) -> None:
    """Write what is kept of each row's token to the cache.

    Args:
        joined: Summands of the rows' joined product, [rows, joined_columns].
        cache: ``keys`` are [num_blocks, 32, kept], bfloat16 or int8; there are no values.
        norm_address: float32 [rank], of the RMSNorm of latents.
        bias_address: float32 [joined_columns], 0 for none.
    """
    launcher.launch(
        store_variant(quantized=cache.quantized),
        (rows.count, 1, 1),
        joined.values,
        bias_address,
        norm_address,
        rows.cosines_sines,
        rows.positions,
        rows.table_rows,
        tables.address,
        cache.keys,
        cache.key_scales,
        joined.split_rows,
        joined.splits,
        int(bias_address != 0),
        int(rows.table_rows != 0),
        tables.stride,
        shape.own_columns,
        epsilon,
    )


def query_norm(
    launcher: Launcher,
    shape: LatentShape,
    joined: Partials,
    output: Activation,
    *,
    norm_address: int,
    epsilon: float,
    bias_address: int = 0,
) -> None:
    """Store the RMSNorm of the queries' own latents.

    Args:
        joined: As of ``latent_store``.
        output: [rows, query_rank].
        norm_address: float32 [query_rank].
        bias_address: float32 [joined_columns], 0 for none.
    """
    scales, sums, outputs = activation_addresses(output)
    launcher.launch(
        query_norm_variant(quantized=isinstance(output, Quantized)),
        (output.rows, 1, 1),
        joined.values,
        bias_address,
        norm_address,
        outputs,
        scales,
        sums,
        joined.split_rows,
        joined.splits,
        int(bias_address != 0),
        shape.query_rank,
        joined.columns,
        epsilon,
    )


def wide_queries(
    launcher: Launcher,
    shape: LatentShape,
    own: Partials,
    rows: LatentRows,
    expansion: LinearWeight,
    queries_address: int,
    *,
    bias_address: int = 0,
    tile_rows: int = 0,
) -> None:
    """Store queries that are as wide as what is kept.

    Args:
        own: Summands of rows that begin with all heads' queries, neither turned nor scaled.
        expansion: [heads * (key_dim + value_dim), rank], in 16 bits.
        queries_address: bfloat16 [rows, heads, kept].
        bias_address: float32 [columns of own], 0 for none.
        tile_rows: Rows of a program, ``FEW_ROWS`` or ``MANY_ROWS``; 0 for what suits their number.
    """
    at_once = tile_rows or _rows_at_once(rows.count)
    launcher.launch(
        wide_queries_variant(_element(expansion), rows=at_once),
        (-(-rows.count // at_once), shape.num_heads, shape.rank // COLUMNS + 1),
        own.values,
        bias_address,
        expansion.weights,
        rows.cosines_sines,
        rows.positions,
        queries_address,
        rows.count,
        own.split_rows,
        own.splits,
        int(bias_address != 0),
        own.columns,
        shape.num_heads,
    )


def decode_splits(rows: int, shape: LatentShape, device: DeviceFacts, max_tokens: int) -> int:
    """Return along how many programs a sequence is split, the same for every step of a graph.

    Args:
        rows: Tokens of the step.
        max_tokens: Most tokens that a query can see.
    """
    form = _form(shape.num_heads, device, quantized=False)
    programs = rows * -(-shape.num_heads // form.lines)
    wanted = device.multiprocessors * PROGRAMS_A_MULTIPROCESSOR // programs
    return max(1, min(wanted, -(-max_tokens // form.tokens), MAX_SPLITS))


def decode_partials_bytes(rows: int, shape: LatentShape, splits: int) -> int:
    """Return the bytes of what splits leave; nothing where a program has a sequence to itself."""
    return rows * shape.num_heads * splits * (shape.rank + 2) * 4 if splits > 1 else 0


def latent_decode(
    launcher: Launcher,
    shape: LatentShape,
    queries_address: int,
    rows: LatentRows,
    cache: PagedCache,
    tables: BlockTables,
    *,
    scale: float,
    splits: int,
    partials_address: int,
) -> None:
    """Attend with one token a row, whose row i is sequence i of ``tables``.

    Args:
        queries_address: bfloat16 [rows, heads, kept]; their first ``rank`` columns become the sums
            of latents.
        cache: As of ``latent_store``, which has written the rows' own tokens already.
        scale: Factor on scores.
        splits: Programs that a sequence is split along.
        partials_address: Of ``decode_partials_bytes`` bytes.
    """
    form = _form(shape.num_heads, launcher.device, quantized=cache.quantized)
    stats = partials_address + rows.count * shape.num_heads * splits * shape.rank * 4
    launcher.launch(
        decode_variant(form),
        (rows.count, -(-shape.num_heads // form.lines), splits),
        queries_address,
        cache.keys,
        cache.key_scales,
        tables.address,
        rows.positions,
        partials_address,
        stats,
        shape.num_heads,
        tables.stride,
        scale,
    )
    if splits > 1:
        launcher.launch(
            join_variant(form),
            (rows.count, shape.num_heads, shape.rank // COLUMNS),
            queries_address,
            rows.positions,
            partials_address,
            stats,
            shape.num_heads,
            splits,
        )


def latent_prefill(
    launcher: Launcher,
    shape: LatentShape,
    queries_address: int,
    cache: PagedCache,
    tables: BlockTables,
    tiles: PrefillTiles,
    *,
    scale: float,
) -> None:
    """Attend with the rows of some chunks.

    Args:
        queries_address: As of ``latent_decode``, of the rows of prompts.
        cache: As of ``latent_store``, which has written the chunks' own tokens already.
        tiles: Cut for ``PREFILL_QUERIES`` tokens each.
        scale: Factor on scores.
    """
    lines = PREFILL_QUERIES * shape.num_heads
    form = _form(lines, launcher.device, quantized=cache.quantized)
    launcher.launch(
        prefill_variant(form),
        (-(-lines // form.lines), tiles.count, 1),
        queries_address,
        cache.keys,
        cache.key_scales,
        tables.address,
        tiles.first_rows,
        tiles.num_rows,
        tiles.table_rows,
        tiles.first_positions,
        shape.num_heads,
        tables.stride,
        scale,
    )


def latent_values(
    launcher: Launcher,
    shape: LatentShape,
    attended_address: int,
    expansion: LinearWeight,
    output: Activation,
    *,
    tile_rows: int = 0,
) -> None:
    """Store the values of all heads.

    Args:
        attended_address: bfloat16 [rows, heads, kept], whose first ``rank`` columns are sums of
            latents.
        expansion: As of ``wide_queries``.
        output: [rows, heads * value_dim].
        tile_rows: As of ``wide_queries``.
    """
    scales, sums, outputs = activation_addresses(output)
    at_once = tile_rows or _rows_at_once(output.rows)
    quantized = isinstance(output, Quantized)
    launcher.launch(
        values_variant(_element(expansion), rows=at_once, quantized=quantized),
        (-(-output.rows // at_once), shape.num_heads, 1),
        attended_address,
        expansion.weights,
        outputs,
        scales,
        sums,
        output.rows,
        shape.num_heads,
    )


def _form(lines: int, device: DeviceFacts, *, quantized: bool) -> AttendForm:
    narrow = device.shared_memory_optin_bytes < WIDE_SHARED_BYTES
    return attend_form(lines, narrow=narrow, quantized=quantized)


def _rows_at_once(rows: int) -> int:
    return FEW_ROWS if rows <= FEW_ROWS else MANY_ROWS


def _element(expansion: LinearWeight) -> str:
    """Return how a matrix of heads is stored, which is never with fewer bits."""
    if expansion.scheme not in ELEMENTS:
        raise UnsupportedModelError(
            f"what makes heads of a latent is stored as {expansion.scheme}; expected one of "
            f"{', '.join(ELEMENTS)}"
        )
    return expansion.scheme
