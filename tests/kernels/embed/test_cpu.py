"""The embedding on a processor, and numbers of files as float32."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "linear"))

import torch
from cpu_products import make_native_matrix, native_matrix, run, started_pool

from zse.kernels.embed.reference import embed
from zse.kernels.native.codes import Kind, Register, Scheme
from zse.kernels.native.library import load, runnable
from zse.kernels.native.structs import Operation, Step

TOLERANCE = 1e-6
SCHEMES = [
    *((scheme, group) for scheme in ("int4", "nf4") for group in (128, 64, 32)),
    *((scheme, group) for scheme in ("int3", "int2") for group in (64, 32)),
    ("mxfp4", 32),
    ("nl4", 32),
    ("nl4_pairs", 32),
    *((scheme, 0) for scheme in ("int8", "bf16", "fp16", "fp32")),
]


@pytest.mark.parametrize("instructions", [one.name for one in runnable()])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_rows_of_tokens_are_widened_and_scaled(instructions: str, scheme: str, group: int) -> None:
    columns = 384 if group else 203
    matrix = make_native_matrix(scheme, 30, columns, group)
    tokens = torch.tensor([29, 0, 7, 7], dtype=torch.int32)
    found = torch.full((4, columns), float("nan"))
    operation = Operation(kind=Kind.EMBED, output=Register.RESIDUAL, scale=1.5)
    operation.matrix = ctypes.pointer(native_matrix(matrix))
    step = Step(rows=4, tokens=tokens.data_ptr())
    step.registers[Register.RESIDUAL] = found.data_ptr()
    with started_pool(instructions) as pool:
        run(pool, operation, step)
    wanted = embed(tokens, matrix.exact) * 1.5
    assert (found - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


@pytest.mark.parametrize("instructions", [one.name for one in runnable()])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 8, 21])
def test_numbers_are_widened_exactly(instructions: str, dtype: torch.dtype, count: int) -> None:
    scheme = {torch.float16: Scheme.FP16, torch.bfloat16: Scheme.BF16}.get(dtype, Scheme.FP32)
    numbers = (torch.arange(count) - 10.3).to(dtype)
    if dtype == torch.float16:
        numbers[0] = 6e-8  # the smallest, below the normal ones
    found = torch.full((count + 1,), 7.0)
    load(instructions).widen(numbers.data_ptr(), scheme, count, found.data_ptr())
    assert torch.equal(found[:count], numbers.float())
    assert found[count] == 7.0
