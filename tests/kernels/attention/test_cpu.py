"""Attention on a processor: every kind of cache, window, cap and sink, in parts and in tiles."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_operations import (
    INSTRUCTIONS,
    Chunk,
    PagedCache,
    attend,
    native_attention,
    run_operation,
    started_pool,
)

from zse.kernels.native.codes import MAX_HEAD_DIM, MAX_HEADS_A_GROUP, CacheDtype, Kind, Register
from zse.kernels.native.structs import Operation, Quantized, Step

BLOCK_SIZE = 16
TOLERANCE = 2e-5


def reference(
    query: torch.Tensor, cache: torch.Tensor, chunk: Chunk, attention: dict[str, Any]
) -> torch.Tensor:
    """Return attention of a chunk in float64, [rows, heads * head_dim].

    Args:
        query: float32 [rows, heads, head_dim].
        cache: float32 [slots, 2 * kv_heads, head_dim]; the chunk's own keys and values, one row
            after the other, where it is a whole text.
    """
    sees_all = attention.get("sees_all")
    seen = (cache if sees_all else cache[chunk.slots(BLOCK_SIZE)]).double()
    kv_heads = cache.shape[1] // 2
    repeats = query.shape[1] // kv_heads
    keys = seen[:, :kv_heads].repeat_interleave(repeats, 1)
    values = seen[:, kv_heads:].repeat_interleave(repeats, 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys)
    scores *= attention.get("scale", query.shape[2] ** -0.5)
    if softcap := attention.get("softcap"):
        scores = softcap * torch.tanh(scores / softcap)
    positions = torch.arange(chunk.start_position, seen.shape[0]).unsqueeze(1)
    places = torch.arange(seen.shape[0]).unsqueeze(0)
    hidden = (places > positions) & (not sees_all)
    if window := attention.get("window"):
        hidden |= (places <= positions - window) | (places >= positions + window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if (sinks := attention.get("sinks")) is not None:
        column = sinks.double().view(-1, 1, 1).expand(-1, query.shape[0], 1)
        weights = torch.softmax(torch.cat((scores, column), 2), 2)[:, :, :-1]
    else:
        weights = torch.softmax(scores, 2)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1).float()


class Case:
    """A cache, chunks of sequences whose blocks lie anywhere in it, and queries."""

    def __init__(
        self,
        heads: tuple[int, int, int],
        chunks: list[tuple[int, int]],
        dtype: CacheDtype = CacheDtype.FP16,
        **attention: Any,
    ) -> None:
        num_heads, kv_heads, head_dim = heads
        self.fields = attention
        generator = torch.Generator().manual_seed(sum(heads) + sum(map(sum, chunks)))
        counts = [-(-(start + rows) // BLOCK_SIZE) for rows, start in chunks]
        order = iter(torch.randperm(sum(counts) + 3, generator=generator).tolist())
        self.chunks = [
            Chunk(rows, start, [next(order) for _ in range(count)])
            for (rows, start), count in zip(chunks, counts, strict=True)
        ]
        self.cache = PagedCache(dtype, sum(counts) + 3, BLOCK_SIZE, kv_heads, head_dim)
        self.cache.fill(generator)
        num_rows = sum(rows for rows, _ in chunks)
        of_queries = 2 * num_heads if attention.get("is_gated") else num_heads
        of_keys = 0 if attention.get("shares_keys") else 2 - attention.get("values_are_keys", 0)
        shape = (num_rows, of_queries + of_keys * kv_heads, head_dim)
        self.query = torch.randn(shape, generator=generator) * 2
        self.num_heads = num_heads
        self.attention, self._kept = native_attention(num_heads, kv_heads, head_dim, **attention)

    def run(self, instructions: str, num_threads: int = 1) -> torch.Tensor:
        with started_pool(instructions, num_threads) as pool:
            return attend(pool, self.query, self.cache, self.attention, self.chunks)

    def expected(self) -> torch.Tensor:
        numbers, is_whole = self.cache.numbers(), self.fields.get("sees_all")
        ends = torch.tensor([chunk.num_rows for chunk in self.chunks]).cumsum(0).tolist()
        return torch.cat(
            [
                reference(
                    self.query[end - chunk.num_rows : end, : self.num_heads],
                    self.query[end - chunk.num_rows : end, self.num_heads :]
                    if is_whole
                    else numbers,
                    chunk,
                    self.fields,
                )
                for chunk, end in zip(self.chunks, ends, strict=True)
            ]
        )


def check(case: Case, instructions: str, num_threads: int = 1) -> None:
    found, expected = case.run(instructions, num_threads), case.expected()
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE, float(error)


MIXED = [(1, 0), (1, 15), (1, 16), (1, 299), (5, 0), (33, 40), (130, 7)]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", list(CacheDtype))
def test_every_kind_of_cache_is_read(instructions: str, dtype: CacheDtype) -> None:
    check(Case((6, 2, 64), MIXED, dtype), instructions, 2)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256, 36])
@pytest.mark.parametrize("heads", [(1, 1), (14, 2), (8, 8), (3, 1)])
def test_heads_of_any_size_and_number(
    instructions: str, head_dim: int, heads: tuple[int, int]
) -> None:
    check(Case((*heads, head_dim), [(1, 70), (19, 60)]), instructions)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("window", [1, 5, 64, 100, 1000])
def test_windows_end_in_and_between_tiles(instructions: str, window: int) -> None:
    check(Case((4, 2, 64), [(1, 0), (1, 350), (150, 10)], window=window), instructions, 2)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_scores_are_scaled_capped_and_share_with_sinks(instructions: str) -> None:
    sinks = torch.tensor([-3.0, 0.0, 9.0, 40.0])
    options = {"scale": 0.31, "softcap": 5.0, "sinks": sinks}
    check(Case((4, 2, 64), [(1, 9), (1, 800), (40, 3)], **options), instructions, 2)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", ["is_gated", "values_are_keys", "shares_keys"])
def test_queries_are_found_in_rows_of_any_layout(instructions: str, name: str) -> None:
    check(Case((4, 2, 64), [(1, 70), (19, 60)], **{name: 1}), instructions)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("window", [0, 1, 30, 65, 500])
def test_rows_of_a_whole_text_see_each_other_where_they_are(instructions: str, window: int) -> None:
    chunks = [(1, 0), (5, 0), (150, 0), (250, 0)]
    check(Case((4, 2, 64), chunks, window=window, sees_all=1), instructions, 2)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("head_dim", [32, 288])
def test_sigmoids_of_gates_multiply_what_attention_returns(
    instructions: str, head_dim: int
) -> None:
    heads, kv_heads, rows = 5, 1, 3
    generator = torch.Generator().manual_seed(head_dim)
    qkv = torch.randn(rows, (2 * heads + 2 * kv_heads) * head_dim, generator=generator)
    mixed = torch.randn(rows, heads * head_dim, generator=generator)
    width = heads * head_dim
    expected = mixed.double() * torch.sigmoid(qkv[:, width : 2 * width].double())
    attention, _ = native_attention(heads, kv_heads, head_dim, is_gated=1)
    codes = torch.zeros(rows, 2048, dtype=torch.int8)
    scales, sums = torch.zeros(rows, 64), torch.zeros(rows, 64)
    step = Step(rows=rows)
    step.quantized = Quantized(
        codes=codes.data_ptr(), scales=scales.data_ptr(), sums=sums.data_ptr(), stride=2048
    )
    operation = Operation(kind=Kind.GATE, output=Register.MIXED, quantizes=32)
    operation.attention = ctypes.pointer(attention)
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, step, {Register.QKV: qkv, Register.MIXED: mixed})
    torch.testing.assert_close(mixed.double(), expected, rtol=1e-6, atol=1e-6)
    stood_for = codes[:, :width].double() * scales[:, : width // 32].repeat_interleave(32, 1)
    assert (stood_for - expected).norm() / expected.norm() < 0.01


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("length", [255, 256, 257, 512, 513, 8192, 8193, 9000])
def test_long_sequences_are_split_and_joined(instructions: str, length: int) -> None:
    check(Case((4, 2, 32), [(1, length - 1)]), instructions, 3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_of_a_row_depend_neither_on_threads_nor_on_other_rows(threads: int) -> None:
    case = Case((14, 2, 64), [(1, 900), (1, 3), (1, 2000), (90, 100)])
    together = case.run(INSTRUCTIONS[0], threads)
    for index, chunk in enumerate(case.chunks[:3]):
        alone = Case((14, 2, 64), [(1, 1)])
        alone.cache, alone.chunks = case.cache, [chunk]
        alone.query = case.query[index : index + 1].clone()
        assert torch.equal(alone.run(INSTRUCTIONS[0], 1)[0], together[index])


def test_scores_far_beyond_what_an_exponential_holds_give_numbers() -> None:
    case = Case((2, 1, 32), [(1, 600), (70, 10)], scale=200.0)
    check(case, INSTRUCTIONS[0])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_the_largest_heads_and_groups_fit_into_the_scratch(instructions: str) -> None:
    check(Case((MAX_HEADS_A_GROUP, 1, MAX_HEAD_DIM), [(1, 130), (3, 60)]), instructions)


head_counts = st.tuples(st.integers(1, 9), st.integers(1, 5)).map(lambda n: (n[0] * n[1], n[1]))
chunks = st.lists(st.tuples(st.just(1) | st.integers(1, 140), st.integers(0, 300)), min_size=1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    heads=head_counts,
    head_dim=st.integers(1, 40).map(lambda half: 2 * half),
    chunks=chunks.filter(lambda chunks: sum(rows for rows, _ in chunks) < 300),
    dtype=st.sampled_from([CacheDtype.FP32, CacheDtype.FP16, CacheDtype.BF16]),
    window=st.just(0) | st.integers(1, 200),
    softcap=st.sampled_from([0.0, 0.0, 8.0]),
    instructions=st.sampled_from(INSTRUCTIONS),
)
def test_any_shape_of_step_equals_the_reference(
    heads: tuple[int, int],
    head_dim: int,
    chunks: list[tuple[int, int]],
    dtype: CacheDtype,
    window: int,
    softcap: float,
    instructions: str,
) -> None:
    case = Case((*heads, head_dim), chunks, dtype, window=window, softcap=softcap)
    check(case, instructions, 2)
