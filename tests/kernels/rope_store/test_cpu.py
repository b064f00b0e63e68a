"""Cosines, rotation and the cache on a processor."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from native_operations import (
    CACHE_DTYPES,
    INSTRUCTIONS,
    PagedCache,
    native_attention,
    native_norm,
    run_operation,
    started_pool,
)

from zse.backends.torch import kept as narrow
from zse.kernels.native.codes import CacheDtype, Kind, Register
from zse.kernels.native.structs import Cache, Operation, Rope, Step
from zse.kernels.rope_store.reference import rope_store, rotate

BLOCK_SIZE = 8


def rotary_of(
    instructions: str, positions: torch.Tensor, frequencies: torch.Tensor, factor: float = 1.0
) -> torch.Tensor:
    """Return cosines and sines, float32 [rows, 2 * frequencies]."""
    width = 2 * len(frequencies)
    rope = Rope(frequencies=frequencies.data_ptr(), rotary_dim=width, factor=factor)
    operation = Operation(kind=Kind.ROTARY, output=Register.ROTARY)
    operation.rope = ctypes.pointer(rope)
    output = torch.full((len(positions), width), float("nan"))
    step = Step(rows=len(positions), positions=positions.data_ptr())
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, step, {Register.ROTARY: output})
    return output


def frequencies_of(rotary_dim: int) -> torch.Tensor:
    return 1.0 / 10_000 ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_cosines_and_sines_are_exact_to_the_last_bit_of_a_float(instructions: str) -> None:
    positions = torch.tensor([*range(40), 4095, 131_071, 1_000_003], dtype=torch.int32)
    frequencies = frequencies_of(50)
    found = rotary_of(instructions, positions, frequencies, factor=1.25)
    angles = torch.outer(positions.float(), frequencies).double()
    expected = torch.cat((angles.cos(), angles.sin()), 1).float() * 1.25
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=1e-12)


class Case:
    """Rows of queries, keys and values for slots anywhere in a cache."""

    def __init__(
        self,
        dtype: CacheDtype,
        heads: tuple[int, int, int],
        rotary_dim: int,
        *,
        num_rows: int = 5,
        has_norms: bool = False,
        turns_keys: int = 0,
    ) -> None:
        self.heads, self.rotary_dim = heads, rotary_dim
        num_heads, kv_heads, head_dim = heads
        generator = torch.Generator().manual_seed(head_dim)
        shape = (num_rows, num_heads + 2 * kv_heads, head_dim)
        self.qkv = torch.randn(shape, generator=generator)
        self.before = self.qkv.clone()
        self.positions = torch.arange(num_rows, dtype=torch.int32) + 3000
        self.slots = torch.randperm(64, generator=generator)[:num_rows].int()
        self.frequencies = frequencies_of(rotary_dim)
        self.cache = PagedCache(dtype, 8, BLOCK_SIZE, kv_heads, head_dim)
        fields: dict[str, Any] = {"rotary_dim": rotary_dim, "turns_keys": turns_keys}
        self.norms: tuple[torch.Tensor, torch.Tensor, float] | None = None
        if has_norms:
            weights = torch.rand(2, head_dim, generator=generator) + 0.5
            self.norms = (weights[0], weights[1], 1e-5)
            fields["q_norm"] = native_norm(weights[0], 1e-5)
            fields["k_norm"] = native_norm(weights[1], 1e-5)
        self.attention, self._kept = native_attention(*heads, **fields)

    def run(self, instructions: str, num_threads: int = 1) -> torch.Tensor:
        """Return the queries."""
        operation = Operation(kind=Kind.ROPE_STORE, input=Register.QKV, output=Register.QKV)
        operation.attention = ctypes.pointer(self.attention)
        registers = {Register.QKV: self.qkv}
        if self.rotary_dim:
            registers[Register.ROTARY] = rotary_of(instructions, self.positions, self.frequencies)
        step = Step(rows=len(self.qkv), slots=self.slots.data_ptr())
        step.caches = (Cache * 1)(self.cache.native())
        with started_pool(instructions, num_threads) as pool:
            run_operation(pool, operation, step, registers)
        return self.qkv[:, : self.heads[0]]

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries, and float32 keys and values [rows, 2 * kv_heads, head_dim]."""
        kept = torch.zeros(64, *self.cache.shape[2:])
        query = rope_store(
            self.before,
            self.positions,
            self.frequencies,
            self.slots.long(),
            kept,
            self.heads[0],
            self.norms,
        )
        return query, kept[self.slots.long()]


TOLERANCES = {
    CacheDtype.FP32: 3e-7,
    CacheDtype.FP16: 2**-11,
    CacheDtype.BF16: 2**-8,
    CacheDtype.INT8: 0.51 / 127,
    CacheDtype.INT4: 0.25,
}


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", list(CacheDtype))
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
def test_queries_turn_and_keys_and_values_are_kept(
    instructions: str, dtype: CacheDtype, has_norms: bool, head_dim: int
) -> None:
    if dtype == CacheDtype.INT4 and head_dim % 64:
        return  # whole runs of 32 in each half alone are kept so
    case = Case(dtype, (4, 2, head_dim), head_dim, has_norms=has_norms)
    found = case.run(instructions)
    query, kept = case.expected()
    torch.testing.assert_close(found, query, rtol=1e-5, atol=2e-6)
    numbers = case.cache.numbers()
    error = (numbers[case.slots.long()] - kept).abs() / kept.abs().amax(-1, keepdim=True)
    assert error.max() < TOLERANCES[dtype] + 1e-6
    others = torch.ones(64, dtype=torch.bool)
    others[case.slots.long()] = False
    assert not numbers[others].any()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rotary_dim", [0, 16, 20])
def test_only_the_first_columns_of_a_head_turn(instructions: str, rotary_dim: int) -> None:
    case = Case(CacheDtype.FP32, (2, 1, 48), rotary_dim)
    found = case.run(instructions)
    before = case.before[:, :2]
    turned = rotate(before[:, :, :rotary_dim], case.positions, case.frequencies)
    torch.testing.assert_close(found[:, :, :rotary_dim], turned, rtol=1e-5, atol=2e-6)
    assert torch.equal(found[:, :, rotary_dim:], before[:, :, rotary_dim:])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_four_bits_are_the_codes_of_the_reference(instructions: str, head_dim: int) -> None:
    """Keys and queries are turned first, values are not; bits are equal but for ties of sums."""
    case = Case(CacheDtype.INT4, (4, 2, head_dim), head_dim, num_rows=40, turns_keys=1)
    found = case.run(instructions)
    query, kept = case.expected()
    torch.testing.assert_close(found, narrow.turned(query), rtol=1e-5, atol=1e-5)
    kept[:, :2] = narrow.turned(kept[:, :2])
    expected = narrow.unpacked(*narrow.packed(kept))
    numbers = case.cache.numbers()[case.slots.long()]
    assert (numbers == expected).float().mean() > 0.999
    assert torch.equal(numbers[:, 2:], expected[:, 2:])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_zeros_and_huge_numbers_are_kept_in_four_bits(instructions: str) -> None:
    case = Case(CacheDtype.INT4, (1, 1, 64), 64)
    case.qkv[:, 1:] = 0.0
    case.qkv[2, 2, 5] = 3e38
    case.qkv[3, 2, 5] = -1e-7
    case.run(instructions)
    numbers = case.cache.numbers()[case.slots.long()]
    assert not numbers[:2].any()
    assert numbers[2, 1, 5] == 8 * 57344.0
    assert numbers.isfinite().all()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [CacheDtype.FP16, CacheDtype.BF16])
def test_numbers_are_rounded_as_torch_rounds_them(instructions: str, dtype: CacheDtype) -> None:
    case = Case(dtype, (1, 1, 256), 0, num_rows=8)
    edges = torch.tensor([65519.0, 65520.0, -1e30, 6e-8, 2.9e-8, 1 + 2**-9, 1 + 3 * 2**-9, 0.0])
    case.qkv[0, 1, :8] = edges
    case.qkv[0, 2, 0] = float("nan")
    expected = case.qkv[:, 1:].to(CACHE_DTYPES[dtype]).float()
    case.run(instructions)
    found = case.cache.numbers()[case.slots.long()]
    assert torch.equal(found.nan_to_num(7.0, 8.0, 9.0), expected.nan_to_num(7.0, 8.0, 9.0))


def keep(
    instructions: str, rows: torch.Tensor, heads: tuple[int, int, int], **fields: Any
) -> torch.Tensor:
    """Store rows of QKV, which change in place; return float32 [rows, 2 * kv_heads, dim]."""
    num_rows, (_, kv_heads, head_dim) = len(rows), heads
    cache = PagedCache(CacheDtype.FP32, 8, BLOCK_SIZE, kv_heads, head_dim)
    attention, _kept = native_attention(*heads, **fields)
    positions = torch.arange(num_rows, dtype=torch.int32) + 40
    frequencies = frequencies_of(fields["rotary_dim"])
    slots = torch.arange(num_rows, dtype=torch.int32) + 3
    operation = Operation(kind=Kind.ROPE_STORE, attention=ctypes.pointer(attention))
    step = Step(rows=num_rows, slots=slots.data_ptr(), caches=(Cache * 1)(cache.native()))
    rotary = rotary_of(instructions, positions, frequencies)
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, step, {Register.QKV: rows, Register.ROTARY: rotary})
    return cache.numbers()[slots.long()]


def turned(heads: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    positions = torch.arange(len(heads)) + 40
    first = rotate(heads[..., :rotary_dim], positions, frequencies_of(rotary_dim))
    return torch.cat((first, heads[..., rotary_dim:]), -1)


def normed(heads: torch.Tensor, epsilon: float) -> torch.Tensor:
    return heads / (heads.square().mean(-1, keepdim=True) + epsilon).sqrt()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_values_may_be_keys_before_their_norm_and_rotation(instructions: str) -> None:
    weight = torch.linspace(0.5, 1.5, 48)
    rows = torch.randn(5, 4 + 2, 48, generator=torch.Generator().manual_seed(1))
    before = rows.clone()
    norm = native_norm(weight, 1e-5)
    options = {"rotary_dim": 16, "values_are_keys": 1, "value_epsilon": 1e-6, "k_norm": norm}
    kept = keep(instructions, rows, (4, 2, 48), **options)
    keys = turned(normed(before[:, 4:], 1e-5) * weight, 16)
    torch.testing.assert_close(kept[:, :2], keys, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(kept[:, 2:], normed(before[:, 4:], 1e-6), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_norms_of_all_heads_together_see_them_as_one_vector(instructions: str) -> None:
    rows = torch.randn(5, 4 + 2 + 2, 32, generator=torch.Generator().manual_seed(2))
    before = rows.clone()
    weights = torch.linspace(0.5, 1.5, 4 * 32)
    norms = {name: native_norm(weights, 1e-5) for name in ("q_norm", "k_norm")}
    kept = keep(instructions, rows, (4, 2, 32), rotary_dim=32, norms_together=1, **norms)
    queries = (normed(before[:, :4].flatten(1), 1e-5) * weights).view(5, 4, 32)
    keys = (normed(before[:, 4:6].flatten(1), 1e-5) * weights[:64]).view(5, 2, 32)
    torch.testing.assert_close(rows[:, :4], turned(queries, 32), rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(kept[:, :2], turned(keys, 32), rtol=1e-5, atol=2e-6)
    assert torch.equal(kept[:, 2:], before[:, 6:])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_gates_stand_between_queries_and_keys_and_stay_as_they_are(instructions: str) -> None:
    rows = torch.randn(5, 2 + 2 + 1 + 1, 32, generator=torch.Generator().manual_seed(3))
    before = rows.clone()
    kept = keep(instructions, rows, (2, 1, 32), rotary_dim=32, is_gated=1)
    torch.testing.assert_close(rows[:, :2], turned(before[:, :2], 32), rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(kept[:, :1], turned(before[:, 4:5], 32), rtol=1e-5, atol=2e-6)
    assert torch.equal(rows[:, 2:4], before[:, 2:4])
    assert torch.equal(kept[:, 1:], before[:, 5:])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_layer_that_reads_anothers_keys_keeps_none(instructions: str) -> None:
    rows = torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(4))
    before = rows.clone()
    assert not keep(instructions, rows, (2, 1, 32), rotary_dim=32, shares_keys=1).any()
    torch.testing.assert_close(rows, turned(before, 32), rtol=1e-5, atol=2e-6)


def test_bits_depend_neither_on_threads_nor_on_other_rows() -> None:
    together = Case(CacheDtype.INT8, (4, 2, 64), 64, num_rows=40, has_norms=True)
    queries = together.run(INSTRUCTIONS[0], 3)
    alone = Case(CacheDtype.INT8, (4, 2, 64), 64, num_rows=40, has_norms=True)
    alone.qkv, alone.slots = alone.qkv[7:8].clone(), alone.slots[7:8].clone()
    alone.positions = alone.positions[7:8].clone()
    assert torch.equal(alone.run(INSTRUCTIONS[0])[0], queries[7])
    slot = int(alone.slots[0])
    assert torch.equal(alone.cache.numbers()[slot], together.cache.numbers()[slot])
