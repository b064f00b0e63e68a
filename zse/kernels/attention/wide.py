"""How to launch the decode attention over INT8 caches of so many rows that bytes are the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.attention.variants import (
    HOPPER,
    WIDE_GROUP,
    WIDE_HEAD_DIM,
    WIDE_SPLITS,
    wide_decode_variant,
)
from zse.kernels.layout import Quantized, activation_addresses
from zse.kernels.rope_store.launch import rope_store
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.attention.launch import AttentionRules
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, BlockTables, HeadInputs, HeadShape, PagedCache


@record
class WideWorkspace:
    """Device memory that it needs besides its operands."""

    queries: int
    """Address of bfloat16 [rows, num_heads, head_dim], aligned to 16."""
    row_numbers: int
    """Address of int32 0, 1, 2 and so on, one a row."""


def takes_wide(
    inputs: HeadInputs,
    shape: HeadShape,
    cache: PagedCache,
    rules: AttentionRules,
    *,
    target: str,
    splits: int,
) -> bool:
    """Whether ``attention_decode_wide`` takes these heads, and is the faster one.

    Of 7B's heads on an H200, with the writing of keys, 128 rows of 576 tokens take 33 us for the 52
    of ``attention_decode``, 256 rows of 1,500 tokens 118 for 233. No fewer than 64 were tried.
    """
    return (
        target == HOPPER
        and splits <= WIDE_SPLITS
        and cache.dtype == "int8"
        and shape.head_dim == WIDE_HEAD_DIM
        and shape.num_heads <= WIDE_GROUP * shape.kv_heads
        and not rules.softcap
        and not rules.sinks
        and inputs.is_usual(shape)
    )


def attention_decode_wide(
    launcher: Launcher,
    inputs: HeadInputs,
    shape: HeadShape,
    cache: PagedCache,
    tables: BlockTables,
    workspace: WideWorkspace,
    output: Activation,
    *,
    rules: AttentionRules,
    splits: int,
) -> None:
    """As ``launch.attention_decode``, where ``takes_wide`` says so.

    All keys and values are written before one is read: rows may follow each other in a sequence.
    Values are multiplied in float16: beyond 65,504 they are infinite.

    Args:
        splits: What ``decode_splits`` says, which the form is chosen by; sequences are not split.
    """
    rope_store(
        launcher,
        inputs,
        shape,
        cache,
        tables,
        table_rows_address=workspace.row_numbers,
        queries_address=workspace.queries,
    )
    output_scales, output_sums, outputs = activation_addresses(output)
    launcher.launch(
        wide_decode_variant(splits, quantized_output=isinstance(output, Quantized)),
        (inputs.qkv.rows, shape.kv_heads, 1),
        workspace.queries,
        inputs.positions,
        tables.address,
        *cache.addresses,
        outputs,
        output_scales,
        output_sums,
        tables.stride,
        shape.num_heads,
        shape.kv_heads,
        rules.window,
        rules.scale or float(shape.head_dim) ** -0.5,
    )
