"""Vectors of whole texts on a processor."""

from __future__ import annotations

import pytest
import torch
from native_operations import INSTRUCTIONS, run_operation, started_pool

from zse.kernels.native.codes import Kind, Pooling, Register
from zse.kernels.native.structs import Operation, Rows, Step
from zse.kernels.pool.reference import pool

LENGTHS = [1, 5, 2, 300]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@pytest.mark.parametrize("width", [1, 128, 203])
def test_each_text_has_its_vector(instructions: str, pooling: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    states = torch.randn(sum(LENGTHS), width, generator=generator)
    rows = (Rows * len(LENGTHS))()
    first = 0
    for one, length in zip(rows, LENGTHS, strict=True):
        one.first_row, one.num_rows, first = first, length, first + length
    step = Step(rows=len(states), num_chunks=len(LENGTHS), chunks=rows)
    operation = Operation(
        kind=Kind.POOL,
        input=Register.RESIDUAL,
        output=Register.ADDED,
        width=width,
        pooling=Pooling[pooling.upper()],
    )
    found = torch.full((len(LENGTHS), width), float("nan"))
    with started_pool(instructions, 2) as threads:
        registers = {Register.RESIDUAL: states, Register.ADDED: found}
        run_operation(threads, operation, step, registers)
    torch.testing.assert_close(found, pool(states, LENGTHS, pooling), rtol=1e-5, atol=1e-6)
