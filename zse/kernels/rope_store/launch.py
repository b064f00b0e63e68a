"""How to launch ``rope_table`` and ``rope_store``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.buffers import Partials
from zse.kernels.norm.launch import summands
from zse.kernels.rope_store.variants import (
    HEADS,
    TABLE_BLOCK,
    check_head_dim,
    rope_store_variant,
    rope_table_variant,
)
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.buffers import Plain
    from zse.kernels.launcher import Launcher


@record
class HeadShape:
    """How many heads of which width."""

    num_heads: int
    kv_heads: int
    head_dim: int

    @property
    def qkv_columns(self) -> int:
        """Columns of the joined q, k and v."""
        return (self.num_heads + 2 * self.kv_heads) * self.head_dim


@record
class HeadInputs:
    """Everything that turns the joined product into heads of q, k and v."""

    qkv: Partials | Plain
    """Summands or bfloat16, [rows, (num_heads + 2 * kv_heads) * head_dim]."""
    cosines_sines: int
    """Address of the table that ``rope_table`` made."""
    positions: int
    """Address of int32 [rows]."""
    bias: int = 0
    """Address of float32 [columns of qkv], 0 for none."""
    q_norm: int = 0
    """Address of float32 [head_dim], 0 for no head norm."""
    k_norm: int = 0
    """Address of float32 [head_dim], 0 for no head norm."""
    epsilon: float = 1e-6
    """Of the head norm."""

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses as the kernels take them, from the product to the positions."""
        return (
            self.qkv.values,
            self.bias,
            self.q_norm,
            self.k_norm,
            self.cosines_sines,
            self.positions,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Rows of a summand, summands, and whether there is a bias, as the kernels take them."""
        return *summands(self.qkv), int(self.bias != 0)


@record
class PagedCache:
    """Keys and values of one layer, in blocks of 32 tokens."""

    keys: int
    """Address of [num_blocks, kv_heads, 32, head_dim], bfloat16 or int8."""
    values: int
    """Address, likewise."""
    key_scales: int = 0
    """Address of float16 [num_blocks, kv_heads, 32, head_dim / 32]; 0 for a bfloat16 cache."""
    value_scales: int = 0
    """Address, likewise."""

    @property
    def quantized(self) -> bool:
        """Whether keys and values are int8."""
        return self.key_scales != 0

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses as the kernels take them."""
        return self.keys, self.values, self.key_scales, self.value_scales


@record
class BlockTables:
    """Which block holds which 32 tokens of each sequence."""

    address: int
    """Address of int32 [sequences, stride]."""
    stride: int


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
        launcher: Where to launch.
        inverse_frequencies_address: float32 [head_dim / 2], radians a position.
        table_address: float32 [num_positions, head_dim]: cosines, then sines, times ``factor``.
        num_positions: Rows of the table.
        head_dim: Width of a head.
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
        launcher: Where to launch.
        inputs: The joined product and what belongs to it.
        shape: Heads.
        cache: Where keys and values go.
        tables: Where in it.
        table_rows_address: int32 [rows]: which row of ``tables`` is the row's sequence.
        queries_address: bfloat16 [rows, num_heads, head_dim]; rotated, not scaled.

    Raises:
        UnsupportedModelError: No kernel takes the head width.
    """
    check_head_dim(shape.head_dim, quantized=cache.quantized)
    all_heads = shape.num_heads + 2 * shape.kv_heads
    launcher.launch(
        rope_store_variant(
            shape.head_dim,
            element="fp32" if isinstance(inputs.qkv, Partials) else "bf16",
            quantized=cache.quantized,
            head_norm=inputs.q_norm != 0,
        ),
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
