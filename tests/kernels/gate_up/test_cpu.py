"""Activations on a processor: accurate to a few units in the last place, in every lane the same."""

from __future__ import annotations

import ctypes

import pytest
import torch
from native_operations import INSTRUCTIONS, run_operation, started_pool

from zse.kernels.gate_up.reference import activated_product
from zse.kernels.native.codes import Activation, Kind, Register
from zse.kernels.native.structs import Matrix, Operation, Quantized, Step
from zse.kernels.norm.reference import quantize

FUNCTIONS = [one for one in Activation if one is not Activation.SWIGLU_OAI]
"""Of one number; the other is of a gate and what it multiplies."""


def activated(
    instructions: str,
    joined: torch.Tensor,
    activation: Activation,
    *,
    is_gated: bool = True,
    limit: float = 0.0,
    quantized: Quantized | None = None,
    num_threads: int = 1,
) -> torch.Tensor:
    rows, width = joined.shape
    operation = Operation(
        kind=Kind.ACTIVATE,
        input=Register.JOINED,
        output=Register.HIDDEN,
        activation=activation,
        is_gated=is_gated,
        limit=limit,
        width=width,
    )
    step = Step(rows=rows)
    if quantized is not None:
        operation.quantizes, step.quantized = 128, quantized
    output = torch.full((rows, width // 2 if is_gated else width), float("nan"))
    registers = {Register.JOINED: joined, Register.HIDDEN: output}
    with started_pool(instructions, num_threads) as pool:
        run_operation(pool, operation, step, registers)
    return output


def random_rows(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(rows, width, generator=generator) * 4


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_rows_longer_than_a_piece_and_of_odd_width_are_activated(
    instructions: str, activation: Activation, is_gated: bool
) -> None:
    joined = random_rows(3, 2 * 1037)
    found = activated(instructions, joined, activation, is_gated=is_gated, num_threads=2)
    name = activation.name.lower()
    expected = activated_product(joined, name, gated=is_gated)
    # The reference's own gelu has an absolute error, which what it is multiplied by magnifies.
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_gate_and_up_are_bounded_before_they_are_multiplied(instructions: str) -> None:
    joined = random_rows(3, 2 * 1037)
    found = activated(instructions, joined, Activation.SWIGLU_OAI, limit=3.0)
    gate, up = joined.double().chunk(2, -1)
    gate, up = gate.clamp(max=3.0), up.clamp(-3.0, 3.0)
    expected = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    assert (joined.abs() > 3.0).any()
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_activations_are_accurate_everywhere(instructions: str, activation: Activation) -> None:
    small = torch.logspace(-30, -1, 1000)
    values = torch.cat((torch.linspace(-100, 100, 20001), small, -small, torch.zeros(1)))
    found = activated(instructions, values[None], activation, is_gated=False)[0].double()
    x = values.double()
    expected = {
        Activation.SILU: x * torch.sigmoid(x),
        Activation.GELU: torch.nn.functional.gelu(x),
        Activation.GELU_TANH: torch.nn.functional.gelu(x, approximate="tanh"),
        Activation.RELU2: torch.relu(x) ** 2,
        Activation.TANH: torch.tanh(x),
    }[activation]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_a_number_gives_the_same_bits_wherever_it_lies(
    instructions: str, activation: Activation
) -> None:
    numbers = random_rows(1, 300)[0]
    together = activated(instructions, numbers[None], activation, is_gated=False)[0]
    for start in (1, 2, 5, 11, 250):
        part = numbers[None, start:].contiguous()
        found = activated(instructions, part, activation, is_gated=False)[0]
        assert torch.equal(found, together[start:])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_the_largest_numbers_and_what_is_beyond_come_out_as_the_limits_of_a_function(
    instructions: str,
) -> None:
    values = torch.tensor([[float("inf"), float("nan"), 3e38, -3e38]])
    for activation in FUNCTIONS:
        found = activated(instructions, values, activation, is_gated=False)[0]
        is_square = activation == Activation.RELU2
        limits = [float("inf"), float("inf") if is_square else 3e38, 0.0]
        if activation == Activation.TANH:
            limits = [1.0, 1.0, -1.0]
        assert torch.equal(found[[0, 2, 3]], torch.tensor(limits)), activation
        assert found[1].isnan() or is_square


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_activated_rows_are_quantized_in_pieces(instructions: str) -> None:
    joined = random_rows(2, 2 * 1280)
    codes = torch.zeros(2, 1280, dtype=torch.int8)
    scales, sums = torch.zeros(2, 40), torch.zeros(2, 40)
    quantized = Quantized(
        codes=codes.data_ptr(), scales=scales.data_ptr(), sums=sums.data_ptr(), stride=1280
    )
    found = activated(instructions, joined, Activation.SILU, quantized=quantized, num_threads=3)
    expected_codes, expected_scales, expected_sums = quantize(found)
    assert torch.equal(codes, expected_codes)
    torch.testing.assert_close(scales[:, :10], expected_scales, rtol=1e-6, atol=0)
    torch.testing.assert_close(sums[:, :10], expected_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rows", [1, 40])
def test_rows_are_multiplied_by_the_columns_of_their_layer_and_quantized(
    instructions: str, rows: int
) -> None:
    values, told = random_rows(rows, 128), random_rows(rows, 3 * 128)
    whole = Matrix(rows=3 * 128)
    codes = torch.zeros(rows, 128, dtype=torch.int8)
    scales, sums = torch.zeros(rows, 4), torch.zeros(rows, 4)
    quantized = Quantized(
        codes=codes.data_ptr(), scales=scales.data_ptr(), sums=sums.data_ptr(), stride=128
    )
    operation = Operation(kind=Kind.TELL, output=Register.HIDDEN, layer=2, width=128, quantizes=128)
    operation.matrix = ctypes.pointer(whole)
    expected = values * told[:, 256:]
    registers = {Register.HIDDEN: values, Register.TOLD: told}
    with started_pool(instructions, 2) as pool:
        run_operation(pool, operation, Step(rows=rows, quantized=quantized), registers)
    assert torch.equal(values, expected)
    expected_codes, expected_scales, _ = quantize(expected)
    assert torch.equal(codes, expected_codes)
    torch.testing.assert_close(scales[:, :1], expected_scales, rtol=1e-6, atol=0)
