"""Latent attention on a processor is attention to keys and values that are made in full."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from native_operations import (
    INSTRUCTIONS,
    Chunk,
    PagedCache,
    native_norm,
    run_operation,
    started_pool,
)

from zse.kernels.latent.reference import latent_attention
from zse.kernels.native.codes import ATTENTION_PARTS, CacheDtype, Kind, Register, Scheme
from zse.kernels.native.structs import Attention, Cache, Latent, Matrix, Operation, Rows, Step

BLOCK_SIZE = 16
SCHEMES = {Scheme.FP32: torch.float32, Scheme.FP16: torch.float16, Scheme.BF16: torch.bfloat16}
PUBLISHED = (4, 512, 64, 128, 128)
ODD = (3, 40, 6, 21, 19)
"""Heads, the latent's columns, those that turn, a head's other columns, its value's."""


class Case:
    """One sequence, all of whose rows are computed and kept in one step."""

    def __init__(
        self, shape: tuple[int, int, int, int, int], num_rows: int, scheme: Scheme = Scheme.FP32
    ) -> None:
        self.shape, self.num_rows = shape, num_rows
        heads, rank, turning, key_dim, value_dim = shape
        generator = torch.Generator().manual_seed(rank)

        def random(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, generator=generator)

        self.qkv = random(num_rows, heads * (key_dim + turning) + rank + turning)
        self.before = self.qkv.clone()
        rows = heads * (key_dim + value_dim)
        self.expansion = (random(rows, rank) * rank**-0.5).to(SCHEMES[scheme])
        self.weight = random(rank) * 0.1 + 1
        self.frequencies = 1.0 / 100 ** (torch.arange(0, turning, 2).float() / turning)
        self.scale = (key_dim + turning) ** -0.5
        self.matrix = Matrix(data=self.expansion.data_ptr(), rows=rows, columns=rank, scheme=scheme)

    def expected(self) -> torch.Tensor:
        heads, rank, turning, _, _ = self.shape
        queries = self.before[:, : -rank - turning].view(self.num_rows, heads, -1)
        latents = self.before[:, -rank - turning : -turning]
        mean = latents.square().mean(-1, keepdim=True)
        return latent_attention(
            queries,
            latents / (mean + 1e-6).sqrt() * self.weight,
            self.before[:, -turning:],
            self.expansion.view(heads, -1, rank),
            self.frequencies,
            self.scale,
        ).flatten(1)

    def run(
        self,
        instructions: str,
        *,
        num_threads: int = 1,
        dtype: CacheDtype = CacheDtype.FP32,
        rows_at_once: int = 0,
    ) -> torch.Tensor:
        """Return what attention gives all rows, which come so many at a time; 0: all at once."""
        cache = PagedCache(dtype, 40, BLOCK_SIZE, 1, self.shape[1] + self.shape[2], rows=1)
        found, size = [], rows_at_once or self.num_rows
        with started_pool(instructions, num_threads) as pool:
            for first in range(0, self.num_rows, size):
                rows = self.qkv[first : first + size].clone()
                found.append(self._step(pool, cache, rows, first))
        return torch.cat(found)

    def _step(self, pool: Any, cache: PagedCache, qkv: torch.Tensor, first: int) -> torch.Tensor:
        heads, rank, turning, key_dim, value_dim = self.shape
        count, nan = len(qkv), float("nan")
        norm = native_norm(self.weight, 1e-6)
        latent = Latent(
            rank=rank,
            key_dim=key_dim,
            value_dim=value_dim,
            query_columns=heads * (key_dim + turning),
            norm=ctypes.pointer(norm),
            expansion=ctypes.pointer(self.matrix),
        )
        attention = Attention(
            num_heads=heads,
            num_kv_heads=1,
            head_dim=rank + turning,
            rotary_dim=turning,
            scale=self.scale,
            rotary=Register.ROTARY,
            latent=ctypes.pointer(latent),
        )
        chunk = Chunk(count, first, list(range(39, -1, -1)))
        slots = chunk.slots(BLOCK_SIZE)[first:].int()
        angles = torch.outer(torch.arange(first, first + count).float(), self.frequencies)
        registers = {
            Register.QKV: qkv,
            Register.ROTARY: torch.cat((angles.cos(), angles.sin()), 1),
            Register.WIDE_QUERIES: torch.full((count, heads * (rank + turning)), nan),
            Register.WIDE_MIXED: torch.full((count, heads * rank), nan),
            Register.MIXED: torch.full((count, heads * value_dim), nan),
            Register.PARTIAL: torch.full((ATTENTION_PARTS, heads, rank + 2), nan),
            Register.ARRIVED: torch.zeros(1, 1, dtype=torch.int32),
        }
        of_chunk = (Rows * 1)(
            Rows(num_rows=count, start_position=first, blocks=chunk.blocks.data_ptr())
        )
        step = Step(rows=count, num_chunks=1, chunks=of_chunk, slots=slots.data_ptr())
        step.caches = (Cache * 1)(cache.native())
        for kind, source, output in (
            (Kind.LATENT_STORE, Register.QKV, Register.QUERY_LATENT),
            (Kind.ABSORB, Register.QKV, Register.WIDE_QUERIES),
            (Kind.ATTEND, Register.WIDE_QUERIES, Register.WIDE_MIXED),
            (Kind.EXPAND, Register.WIDE_MIXED, Register.MIXED),
        ):
            operation = Operation(kind=kind, input=source, output=output)
            operation.attention = ctypes.pointer(attention)
            run_operation(pool, operation, step, registers)
        self.registers = registers
        return registers[Register.MIXED]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("shape", [PUBLISHED, ODD], ids=["published", "odd"])
@pytest.mark.parametrize("rows_at_once", [0, 1, 7])
def test_it_is_attention_to_keys_and_values_made_in_full(
    instructions: str, shape: tuple[int, int, int, int, int], rows_at_once: int
) -> None:
    case = Case(shape, 60)
    found = case.run(instructions, rows_at_once=rows_at_once)
    torch.testing.assert_close(found, case.expected(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("scheme", [Scheme.FP16, Scheme.BF16])
def test_what_makes_keys_and_values_may_have_16_bits(scheme: Scheme) -> None:
    case = Case(ODD, 30, scheme)
    found = case.run(INSTRUCTIONS[0])
    torch.testing.assert_close(found, case.expected(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "error"),
    [(CacheDtype.FP16, 2e-3), (CacheDtype.BF16, 2e-2), (CacheDtype.INT8, 3e-2)],
)
def test_a_narrower_cache_is_close(dtype: CacheDtype, error: float) -> None:
    case = Case(PUBLISHED, 40)
    found, expected = case.run(INSTRUCTIONS[0], dtype=dtype), case.expected()
    assert float((found - expected).abs().max() / expected.abs().max()) < error


def test_a_long_sequence_is_attended_to_in_parts() -> None:
    case = Case(ODD, 600)
    case.run(INSTRUCTIONS[0])
    found = case.run(INSTRUCTIONS[0], num_threads=2, rows_at_once=599)
    torch.testing.assert_close(found[-1], case.expected()[-1], rtol=1e-4, atol=2e-5)


def test_bits_depend_neither_on_threads_nor_on_other_rows() -> None:
    case = Case(PUBLISHED, 30)
    alone = case.run(INSTRUCTIONS[0], rows_at_once=1)
    last = case.registers[Register.WIDE_QUERIES][-1]
    assert torch.equal(case.run(INSTRUCTIONS[0], rows_at_once=1, num_threads=3), alone)
    case.run(INSTRUCTIONS[0])
    assert torch.equal(case.registers[Register.WIDE_QUERIES][-1], last)
