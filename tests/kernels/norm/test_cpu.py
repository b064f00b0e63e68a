"""Norms and sums of rows on a processor."""

from __future__ import annotations

import ctypes

import pytest
import torch
from native_operations import INSTRUCTIONS, native_norm, run_operation, started_pool

from zse.kernels.native.codes import Kind, Register, RowSet
from zse.kernels.native.structs import Matrix, Operation, Quantized, Step
from zse.kernels.norm.reference import quantize, residual_norm, rms_norm

TOLERANCE = 2e-6
WIDTHS = [1, 7, 64, 127, 896, 1030]


def random_rows(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    return torch.randn(rows, width, generator=generator) * 3 + 0.5


def normed(
    instructions: str,
    values: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    subtracts_mean: bool = False,
    wanted: torch.Tensor | None = None,
    quantized: Quantized | None = None,
    num_threads: int = 1,
) -> torch.Tensor:
    """Return 1.5 times the norm of all rows, or of the wanted ones, in a register of their own."""
    norm = native_norm(weight, 1e-5, bias=bias, subtracts_mean=subtracts_mean)
    operation = Operation(
        kind=Kind.NORM,
        input=Register.RESIDUAL,
        output=Register.NORMED,
        scale=1.5,
        width=values.shape[1],
    )
    operation.norm = ctypes.pointer(norm)
    step = Step(rows=len(values))
    if quantized is not None:
        operation.quantizes, step.quantized = 128, quantized
    if wanted is not None:
        operation.row_set = RowSet.WANTED
        step.num_wanted, step.wanted = len(wanted), wanted.data_ptr()
    output = torch.full_like(values if wanted is None else values[wanted.long()], float("nan"))
    registers = {Register.RESIDUAL: values, Register.NORMED: output}
    with started_pool(instructions, num_threads) as pool:
        run_operation(pool, operation, step, registers)
    return output


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_layer_norm", [False, True])
def test_rows_of_any_width_are_normed(instructions: str, width: int, is_layer_norm: bool) -> None:
    values, parameters = random_rows(3, width), random_rows(2, width)
    weight, bias = parameters[0], parameters[1] if is_layer_norm else None
    found = normed(instructions, values, weight, bias=bias, subtracts_mean=is_layer_norm)
    _, expected = residual_norm(
        values.double(),
        weight.double(),
        1e-5,
        is_layer_norm=is_layer_norm,
        norm_bias=bias,
        output_scale=1.5,
    )
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE or width == 1  # one number's distance from its mean is all rounding


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_wanted_rows_are_gathered_and_normed(instructions: str) -> None:
    values, weight = random_rows(40, 96), random_rows(1, 96)[0]
    wanted = torch.tensor([39, 0, 7, 7], dtype=torch.int32)
    found = normed(instructions, values, weight, wanted=wanted)
    everything = normed(instructions, values, weight, num_threads=3)
    assert torch.equal(found, everything[wanted.long()])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_normed_rows_are_quantized_for_matrices_of_whole_numbers(instructions: str) -> None:
    values, weight = random_rows(5, 384), random_rows(1, 384)[0]
    codes = torch.zeros(5, 384, dtype=torch.int8)
    scales, sums = torch.zeros(5, 12), torch.zeros(5, 12)
    quantized = Quantized(
        codes=codes.data_ptr(), scales=scales.data_ptr(), sums=sums.data_ptr(), stride=384
    )
    found = normed(instructions, values, weight, quantized=quantized, num_threads=2)
    expected_codes, expected_scales, expected_sums = quantize(found)
    assert torch.equal(codes, expected_codes)
    torch.testing.assert_close(scales[:, :3], expected_scales, rtol=1e-6, atol=0)
    torch.testing.assert_close(sums[:, :3], expected_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (2, 13), (70, 129)])
def test_what_is_added_is_scaled(instructions: str, rows: int, width: int) -> None:
    values, added = random_rows(rows, width), random_rows(rows, width) * 2
    operation = Operation(
        kind=Kind.ADD, input=Register.ADDED, output=Register.RESIDUAL, scale=0.25, width=width
    )
    expected = values.double() + added.double() * 0.25
    registers = {Register.ADDED: added, Register.RESIDUAL: values}
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, Step(rows=rows), registers)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rows", [1, 45])
def test_what_is_added_may_have_a_gate_for_each_row(instructions: str, rows: int) -> None:
    values, added = random_rows(rows, 77), random_rows(rows, 77) * 2
    gates = random_rows(rows, 1) * 10
    operation = Operation(
        kind=Kind.ADD_GATED, input=Register.SHARED, output=Register.MIXTURE, scale=9.0, width=77
    )
    expected = values.double() + added.double() * torch.sigmoid(gates.double())
    registers = {
        Register.SHARED: added,
        Register.MIXTURE: values,
        Register.SHARED_GATE: gates,
    }
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, Step(rows=rows), registers)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (40, 96)])
def test_short_rows_are_normed_one_by_one_and_added(
    instructions: str, rows: int, width: int
) -> None:
    values, added = random_rows(rows, 3 * width), random_rows(rows, 3 * width) * 2
    weight = random_rows(1, width)[0]
    norm, whole = native_norm(weight, 1e-5), Matrix(rows=3 * width)
    operation = Operation(
        kind=Kind.ADD_PARTS, input=Register.JOINED, output=Register.TOLD, width=width
    )
    operation.norm, operation.matrix = ctypes.pointer(norm), ctypes.pointer(whole)
    parts = rms_norm(added.double().view(rows, 3, width), weight.double(), 1e-5)
    expected = values.double() + parts.view(rows, -1)
    registers = {Register.JOINED: added, Register.TOLD: values}
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, Step(rows=rows), registers)
    torch.testing.assert_close(values.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 3), (2, 20011)])
def test_numbers_are_scaled_and_capped(instructions: str, rows: int, width: int) -> None:
    values = random_rows(rows, width) * 40
    expected = 30.0 * torch.tanh(values.double() * 0.5 / 30.0)
    with started_pool(instructions, 2) as pool:
        for kind, scale in ((Kind.SCALE, 0.5), (Kind.CAP, 30.0)):
            operation = Operation(kind=kind, output=Register.LOGITS, width=width, scale=scale)
            operation.row_set = RowSet.WANTED
            run_operation(pool, operation, Step(num_wanted=rows), {Register.LOGITS: values})
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)
