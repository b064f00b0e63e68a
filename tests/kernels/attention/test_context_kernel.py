"""Attention over lines equals its reference, in the interpreter, for every type of cache."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher
from paged_cache import Pages, Tables, relative_error

from zse.errors import UnsupportedModelError
from zse.kernels.attention.context import (
    Context,
    aligned_blocks,
    attention_over_context,
    context_bytes,
    context_entries,
    gather_context,
    takes_context,
)
from zse.kernels.attention.launch import PrefillTiles
from zse.kernels.attention.reference import TOLERANCE, attention
from zse.kernels.attention.tiles import PrefillChunk, prefill_tiles
from zse.kernels.attention.variants import (
    APART_HEAD_DIMS,
    APART_QUERIES,
    PREFILL_QUERIES,
    context_queries,
)
from zse.kernels.layout import HeadShape


def check(
    chunks: list[tuple[int, int]],
    *,
    head_dim: int = 64,
    kv_heads: int = 2,
    group: int = 1,
    quantized: bool = False,
    narrow: bool = False,
    tile_queries: int = PREFILL_QUERIES,
) -> None:
    """Attend with chunks of (first position, rows), one a sequence; memory is poisoned before."""
    torch.manual_seed(8)
    shape = HeadShape(num_heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim)
    lengths = [first + count for first, count in chunks]
    order = torch.randperm(sum(-(-length // 32) for length in lengths)).tolist()
    tables = Tables([[order.pop() for _ in range(-(-length // 32))] for length in lengths])
    pages = Pages(
        1 + sum(map(len, tables.lists)), kv_heads, head_dim, quantized=quantized, narrow=narrow
    )
    for own, length in zip(tables.lists, lengths, strict=True):
        keys, values = torch.randn(2, length, kv_heads, head_dim)
        pages.write(own, keys, values)
    rows = sum(count for _, count in chunks)
    queries = torch.randn(rows, shape.num_heads, head_dim).bfloat16()
    found = torch.zeros(rows, shape.num_heads * head_dim, dtype=torch.bfloat16)
    described, first_row = [], 0
    entries: list[int] = []
    first_lines = []
    for row, (first, count) in enumerate(chunks):
        described.append(
            PrefillChunk(first_row=first_row, num_rows=count, table_row=row, first_position=first)
        )
        first_row += count
        first_lines.append(len(entries) * 32)
        entries += context_entries(tables.lists[row], first + count)
    lists = prefill_tiles(described, tile_queries)
    lines = [first_lines[row] for row in lists.table_rows]
    arrays = [
        torch.tensor(each, dtype=torch.int32)
        for each in (lists.first_rows, lists.num_rows, lists.first_positions, lines, entries)
    ]
    wide = torch.full((context_bytes(shape, len(entries)) // 2,), float("nan")).bfloat16()
    context = Context(
        keys=wide.data_ptr(),
        num_blocks=len(entries),
        blocks=arrays[4].data_ptr(),
        tile_lines=arrays[3].data_ptr(),
        queries=tile_queries,
    )
    launcher = InterpretedLauncher()
    gather_context(launcher, shape, pages.cache, context)
    attention_over_context(
        launcher, queries.data_ptr(), shape, context,
        PrefillTiles(
            count=len(lists.num_rows), first_rows=arrays[0].data_ptr(),
            num_rows=arrays[1].data_ptr(), table_rows=0, first_positions=arrays[2].data_ptr(),
        ),
        found.data_ptr(),
    )  # fmt: skip
    for chunk, table, length in zip(described, tables.lists, lengths, strict=True):
        own = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
        expected = attention(
            queries[own].float(), pages.read(table, length), torch.arange(length),
            chunk.first_position, None, 0.0, None,
        )  # fmt: skip
        assert relative_error(found[own], expected) <= TOLERANCE


@pytest.mark.parametrize(
    "chunks", [[(0, 1)], [(0, 130)], [(37, 5), (0, 33)], [(64, 64)], [(130, 3), (96, 1)]]
)
def test_chunks_with_and_without_a_prefix(chunks: list[tuple[int, int]]) -> None:
    check(chunks)


@pytest.mark.parametrize("head_dim", [128, 256])
def test_wider_heads_that_share_a_key(head_dim: int) -> None:
    check([(40, 30)], head_dim=head_dim, kv_heads=1, group=3)


@pytest.mark.parametrize("head_dim", APART_HEAD_DIMS)
def test_tiles_of_more_queries_see_what_each_of_them_sees(head_dim: int) -> None:
    check([(100, 150), (0, 5)], head_dim=head_dim, tile_queries=APART_QUERIES)


def test_heads_that_the_form_of_wide_tiles_does_not_take_make_all_of_a_step_narrow() -> None:
    assert context_queries([64, 128], "sm_90") == APART_QUERIES
    assert context_queries([64, 256], "sm_90") == context_queries([128], "sm_80") == PREFILL_QUERIES


@pytest.mark.parametrize("options", [{"quantized": True}, {"narrow": True}])
def test_rounded_keys_and_values_are_what_the_cache_means(options: dict[str, bool]) -> None:
    check([(37, 30), (5, 1)], **options)


def test_each_sequence_begins_at_a_multiple_of_the_longest_tile_with_zeros_behind_it() -> None:
    assert context_entries([7, 3], 33) == [7 * 64 + 32, 3 * 64 + 1, 0, 0]
    assert context_entries([9], 32) == [9 * 64 + 32, 0, 0, 0]
    assert [aligned_blocks(tokens) for tokens in (1, 128, 129)] == [4, 4, 8]


def test_there_are_kernels_for_heads_that_fit_the_memory_of_a_multiprocessor() -> None:
    heads = {dim: HeadShape(num_heads=4, kv_heads=2, head_dim=dim) for dim in (64, 80, 128, 256)}
    assert [dim for dim in heads if takes_context(heads[dim], "sm_90")] == [64, 128, 256]
    assert [dim for dim in heads if takes_context(heads[dim], "sm_86")] == [64, 128]


def test_heads_that_no_kernel_copies_are_refused() -> None:
    odd = HeadShape(num_heads=4, kv_heads=2, head_dim=80)
    pages = Pages(2, 2, 80, quantized=False)
    context = Context(keys=256, num_blocks=4, blocks=256, tile_lines=256)
    with pytest.raises(UnsupportedModelError, match="80 columns"):
        gather_context(InterpretedLauncher(), odd, pages.cache, context)
    with pytest.raises(UnsupportedModelError, match="no attention over lines"):
        attention_over_context(
            InterpretedLauncher(),
            256,
            odd,
            context,
            PrefillTiles(count=1, first_rows=0, num_rows=0, table_rows=0, first_positions=0),
            256,
        )
