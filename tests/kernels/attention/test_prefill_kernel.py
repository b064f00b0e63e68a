"""The prefill attention equals its reference, in the interpreter; tiles cover every row."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher
from paged_cache import Pages, Tables, leave_behind, relative_error

from zse.device.facts_of_gpus import A100
from zse.kernels.attention.launch import (
    AttentionRules,
    PrefillTiles,
    attention_prefill,
    output_gate,
)
from zse.kernels.attention.reference import TOLERANCE, attention
from zse.kernels.attention.tiles import PrefillChunk, prefill_tiles
from zse.kernels.attention.variants import PREFILL_QUERIES
from zse.kernels.layout import HeadInputs, HeadShape, Partials


def check(
    chunks: list[tuple[int, int]],
    *,
    head_dim: int = 64,
    kv_heads: int = 1,
    group: int = 2,
    window: int = 0,
    softcap: float = 0.0,
    quantized: bool = False,
    narrow: bool = False,
    has_sinks: bool = False,
    leaves: bool = False,
    whole: bool = False,
    launcher: InterpretedLauncher | None = None,
) -> None:
    """Attend with chunks of (first position, rows), one a sequence."""
    torch.manual_seed(8)
    shape = HeadShape(num_heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim)
    lengths = [first + count for first, count in chunks]
    order = torch.randperm(sum(-(-length // 32) for length in lengths)).tolist()
    tables = Tables([[order.pop() for _ in range(-(-length // 32))] for length in lengths])
    blocks = 1 + sum(map(len, tables.lists))
    pages = Pages(blocks, kv_heads, head_dim, quantized=quantized, narrow=narrow)
    for own, length in zip(tables.lists, lengths, strict=True):
        keys, values = torch.randn(2, length, kv_heads, head_dim)
        pages.write(own, keys, values)
    rows = sum(count for _, count in chunks)
    queries = torch.randn(rows, shape.num_heads, head_dim).bfloat16()
    found = torch.zeros(rows, shape.num_heads * head_dim, dtype=torch.bfloat16)
    described, first_row = [], 0
    for row, (first, count) in enumerate(chunks):
        described.append(
            PrefillChunk(first_row=first_row, num_rows=count, table_row=row, first_position=first)
        )
        first_row += count
    lists = prefill_tiles(described, PREFILL_QUERIES)
    arrays = [
        torch.tensor(entries, dtype=torch.int32)
        for entries in (
            lists.first_rows,
            lists.num_rows,
            lists.table_rows,
            lists.first_positions,
            lists.ends,
        )
    ]
    sinks = torch.randn(shape.num_heads) * 3
    kept = [pages.read(*each) for each in zip(tables.lists, lengths, strict=True)]
    if leaves:
        leave_behind(pages, tables, [max(0, first + 1 - window) for first, _ in chunks])
    attention_prefill(
        launcher or InterpretedLauncher(), queries.data_ptr(), shape, pages.cache, tables.tables,
        PrefillTiles(
            count=len(lists.num_rows), first_rows=arrays[0].data_ptr(),
            num_rows=arrays[1].data_ptr(), table_rows=arrays[2].data_ptr(),
            first_positions=arrays[3].data_ptr(), ends=arrays[4].data_ptr(),
        ),
        found.data_ptr(),
        rules=AttentionRules(
            window=window, softcap=softcap, sinks=sinks.data_ptr() if has_sinks else 0, whole=whole
        ),
    )  # fmt: skip
    for chunk, stored in zip(described, kept, strict=True):
        own = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
        length = chunk.first_position + chunk.num_rows
        expected = attention(
            queries[own].float(), stored, torch.arange(length),
            chunk.first_position, window or None, softcap, sinks if has_sinks else None,
            whole=whole,
        )  # fmt: skip
        assert relative_error(found[own], expected) <= TOLERANCE


@pytest.mark.parametrize(("head_dim", "window"), [(32, 0), (64, 0), (64, 5), (64, 70)])
def test_tokens_of_whole_texts_see_what_follows_them(head_dim: int, window: int) -> None:
    check([(0, 131), (0, 3), (0, 64)], head_dim=head_dim, group=1, window=window, whole=True)


@pytest.mark.parametrize(
    "chunks", [[(0, 1)], [(0, 130)], [(37, 5), (0, 33)], [(64, 64)], [(130, 3), (96, 1)]]
)
def test_chunks_with_and_without_a_prefix(chunks: list[tuple[int, int]]) -> None:
    check(chunks)


@pytest.mark.parametrize("window", [1, 20, 70])
def test_a_window_hides_what_is_before_it(window: int) -> None:
    check([(90, 50)], window=window)


@pytest.mark.parametrize("quantized", [False, True])
def test_blocks_that_a_window_has_left_behind_are_not_read(quantized: bool) -> None:
    check([(131, 2), (97, 3)], window=30, leaves=True, quantized=quantized)


@pytest.mark.parametrize(
    ("head_dim", "group", "quantized"),
    [(64, 7, True), (80, 1, False), (128, 2, True), (256, 1, False), (512, 1, True)],
)
def test_other_heads_and_an_int8_cache(head_dim: int, group: int, quantized: bool) -> None:
    check([(40, 30)], head_dim=head_dim, group=group, quantized=quantized)


@pytest.mark.parametrize(("head_dim", "group", "window"), [(64, 7, 0), (128, 2, 30), (256, 1, 0)])
def test_a_cache_of_four_bits_is_read(head_dim: int, group: int, window: int) -> None:
    check([(40, 30), (0, 5)], head_dim=head_dim, group=group, window=window, narrow=True)


def test_scores_are_capped() -> None:
    check([(40, 30)], head_dim=128, softcap=2.0)


@pytest.mark.parametrize("window", [0, 20])
def test_sinks_take_their_share_of_the_softmax(window: int) -> None:
    check([(40, 30)], window=window, has_sinks=True, group=4)


@pytest.mark.parametrize("has_bias", [False, True])
def test_gates_scale_the_output_in_place(has_bias: bool) -> None:
    torch.manual_seed(9)
    shape = HeadShape(num_heads=3, kv_heads=1, head_dim=64, parts=("query", "gate", "key", "value"))
    parts, bias = torch.randn(3, 7, shape.qkv_columns), torch.randn(shape.qkv_columns)
    outputs = torch.randn(4, 192).bfloat16()
    gates = (parts.sum(0) + (bias if has_bias else 0))[2:6, 192:384]
    expected = outputs.float() * torch.sigmoid(gates)
    joined = Partials(rows=7, columns=shape.qkv_columns, splits=3, values=parts.data_ptr())
    inputs = HeadInputs(
        qkv=joined.part(2, 4), cosines_sines=0, positions=0,
        bias=bias.data_ptr() if has_bias else 0,
    )  # fmt: skip
    output_gate(InterpretedLauncher(), inputs, shape, outputs.data_ptr())
    assert relative_error(outputs, expected) <= TOLERANCE


def test_the_form_for_older_devices_gives_the_same() -> None:
    check([(40, 30)], head_dim=128, launcher=InterpretedLauncher(A100))


def test_tiles_cover_every_row_once_and_end_with_the_longest_context() -> None:
    chunks = [
        PrefillChunk(first_row=4, num_rows=300, table_row=0, first_position=0),
        PrefillChunk(first_row=304, num_rows=1, table_row=2, first_position=900),
    ]
    lists = prefill_tiles(chunks, 128)
    covered = [
        row
        for first, count in zip(lists.first_rows, lists.num_rows, strict=True)
        for row in range(first, first + count)
    ]
    assert sorted(covered) == list(range(4, 305))
    assert lists.first_positions == [0, 128, 256, 900]
    assert lists.table_rows == [0, 0, 0, 2]
    assert lists.num_rows == [128, 128, 44, 1]
