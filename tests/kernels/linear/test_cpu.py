"""Products on a processor equal the references, and a row's bits depend on no other row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import torch
from cpu_products import (
    Product,
    make_native_matrix,
    make_values,
    quantized_rows,
    started_pool,
)
from matrices import relative_error

from zse.kernels.linear.reference import QUANTIZED_TOLERANCE, linear
from zse.kernels.native.codes import Kind
from zse.kernels.native.library import runnable
from zse.kernels.norm.reference import quantize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.kernels.native.library import Pool

GROUPED = [
    *((scheme, group) for scheme in ("int4", "nf4") for group in (128, 64, 32)),
    *((scheme, group) for scheme in ("int3", "int2") for group in (64, 32)),
    ("mxfp4", 32),
    ("nl4", 32),
    ("nl4_pairs", 32),
]
FLOAT_TOLERANCE = 1e-5


@pytest.fixture(params=[one.name for one in runnable()])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with started_pool(request.param) as started:
        yield started


def quantized_product(pool: Pool, product: Product, group: int) -> tuple[torch.Tensor, float]:
    """Return the product of quantized activations, and its relative error."""
    product.quantizes = group
    quantized = quantized_rows(pool, product.values, group)
    found = torch.full((len(product.values), product.matrix.weight.rows), float("nan"))
    product.run(pool, found, quantized)
    exact = quantized.values(product.matrix.weight.columns)
    return found, relative_error(found, linear(exact, product.matrix.int8_values))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 70])
@pytest.mark.parametrize(("scheme", "group"), GROUPED)
def test_int8_activations_times_four_bit_rows(
    pool: Pool, scheme: str, group: int, rows: int
) -> None:
    product = Product(make_native_matrix(scheme, 83, 384, group), make_values(rows, 384))
    assert quantized_product(pool, product, group)[1] <= QUANTIZED_TOLERANCE


@pytest.mark.parametrize("columns", [32, 96, 1120])
def test_groups_of_32_need_no_multiple_of_128_columns(pool: Pool, columns: int) -> None:
    for scheme in ("int4", "nf4", "mxfp4", "nl4", "nl4_pairs"):
        product = Product(make_native_matrix(scheme, 40, columns, 32), make_values(20, columns))
        assert quantized_product(pool, product, 32)[1] <= QUANTIZED_TOLERANCE


@pytest.mark.parametrize("rows", [1, 5, 8, 13, 40])
@pytest.mark.parametrize("columns", [1, 31, 128, 200, 1152])
def test_int8_activations_times_int8_rows_of_any_width(pool: Pool, columns: int, rows: int) -> None:
    product = Product(make_native_matrix("int8", 51, columns), make_values(rows, columns))
    assert quantized_product(pool, product, 128)[1] <= QUANTIZED_TOLERANCE


@pytest.mark.parametrize("weights", [1, 7, 8, 9, 31, 33])
@pytest.mark.parametrize(
    ("scheme", "group"), [("int4", 128), ("nf4", 64), ("mxfp4", 32), ("nl4_pairs", 32), ("int8", 0)]
)
def test_any_number_of_rows_of_weights(pool: Pool, scheme: str, group: int, weights: int) -> None:
    for rows in (1, 3, 8, 30):
        product = Product(make_native_matrix(scheme, weights, 256, group), make_values(rows, 256))
        assert quantized_product(pool, product, group or 128)[1] <= QUANTIZED_TOLERANCE


@pytest.mark.parametrize("lowest", [-128, -127])
def test_the_largest_codes_of_both_sides_do_not_overflow(pool: Pool, lowest: int) -> None:
    matrix = make_native_matrix("int8", 24, 512)
    codes, scales = matrix.kept
    codes[::2], codes[1::2] = 127, lowest
    values = torch.ones(20, 512)
    values[1::2] = -1
    product = Product(matrix, values, quantizes=128)
    found = torch.zeros(20, 24)
    product.run(pool, found, quantized_rows(pool, values, 128))
    wanted = linear(values, codes.double() * scales.double().unsqueeze(-1))
    assert relative_error(found, wanted) <= 1e-6


def test_the_largest_four_bit_codes_do_not_overflow(pool: Pool) -> None:
    matrix = make_native_matrix("int4", 24, 512, 128)
    matrix.kept[0].fill_(0xFF)
    pairs = matrix.kept[1].view(torch.float16).view(24, 4, 2).double()
    wanted = ((15 * pairs[..., 0] + pairs[..., 1]).sum(-1) * 128).expand(20, 24)
    product = Product(matrix, torch.ones(20, 512), quantizes=128)
    found = torch.zeros(20, 24)
    product.run(pool, found, quantized_rows(pool, product.values, 128))
    assert relative_error(found, wanted) <= 1e-5


@pytest.mark.parametrize("rows", [1, 3, 8, 70])
@pytest.mark.parametrize(
    ("scheme", "group"),
    [*GROUPED, ("int8", 0), ("bf16", 0), ("fp16", 0), ("fp32", 0)],
)
def test_float_activations_times_every_scheme(
    pool: Pool, scheme: str, group: int, rows: int
) -> None:
    product = Product(make_native_matrix(scheme, 43, 384, group), make_values(rows, 384))
    found = torch.full((rows, 43), float("nan"))
    product.run(pool, found)
    assert relative_error(found, linear(product.values, product.matrix.exact)) <= FLOAT_TOLERANCE


@pytest.mark.parametrize("columns", [1, 7, 9, 255, 300, 1030])
@pytest.mark.parametrize("scheme", ["int8", "bf16", "fp16", "fp32"])
def test_float_activations_of_any_width(pool: Pool, scheme: str, columns: int) -> None:
    product = Product(make_native_matrix(scheme, 11, columns), make_values(5, columns))
    found = torch.full((5, 11), float("nan"))
    product.run(pool, found)
    assert relative_error(found, linear(product.values, product.matrix.exact)) <= FLOAT_TOLERANCE


@pytest.mark.parametrize("quantizes", [0, 128])
@pytest.mark.parametrize("rows", [1, 20])
def test_bias_scale_and_what_was_there_are_added(pool: Pool, quantizes: int, rows: int) -> None:
    product = Product(
        make_native_matrix("int8", 37, 256),
        make_values(rows, 256),
        bias=torch.linspace(-1, 1, 37),
        quantizes=quantizes,
        kind=Kind.MULTIPLY_ADD,
        scale=0.5,
    )
    quantized = quantized_rows(pool, product.values, 128)
    before = make_values(rows, 37)
    found = before.clone()
    product.run(pool, found, quantized)
    assert product.bias is not None
    exact = quantized.values(256) if quantizes else product.values
    wanted = before + 0.5 * (linear(exact, product.matrix.exact) + product.bias)
    assert relative_error(found, wanted) <= FLOAT_TOLERANCE


@pytest.mark.parametrize("of_wanted", [False, True])
@pytest.mark.parametrize(
    ("scheme", "group", "quantizes"),
    [
        *((scheme, group, group) for scheme, group in GROUPED),
        ("int8", 0, 128),
        ("int4", 128, 0),
        ("bf16", 0, 0),
        ("fp32", 0, 0),
    ],
)
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(
    scheme: str, group: int, quantizes: int, *, of_wanted: bool
) -> None:
    matrix = make_native_matrix(scheme, 611, 640, group)
    values = make_values(200, 640)
    for one in runnable():
        found: list[torch.Tensor] = []
        for rows, num_threads in [(1, 1), (5, 1), (8, 2), (13, 3), (41, 1), (200, 2)]:
            with started_pool(one.name, num_threads) as pool:
                some = values[-rows:].contiguous()
                product = Product(matrix, some, quantizes=quantizes, of_wanted=of_wanted)
                quantized = quantized_rows(pool, some, quantizes or 128)
                output = torch.full((rows, 611), float("nan"))
                product.run(pool, output, quantized)
                found.append(output[-1])
        assert all(torch.equal(found[0], other) for other in found[1:])


def test_the_least_exponent_of_mxfp4_is_no_zero(pool: Pool) -> None:
    matrix = make_native_matrix("mxfp4", 8, 64, 32)
    codes, exponents = matrix.kept
    codes.fill_(0x22)  # ones
    exponents.zero_()
    product = Product(matrix, torch.full((2, 64), 2.0**120))
    found = torch.zeros(2, 8)
    product.run(pool, found)
    assert (found == 64 * 2.0**-7).all()


def test_a_step_without_wanted_rows_computes_nothing(pool: Pool) -> None:
    product = Product(make_native_matrix("bf16", 8, 64), torch.zeros(0, 64), of_wanted=True)
    output = torch.full((1, 8), 7.0)
    product.run(pool, output)
    assert (output == 7.0).all()


def test_nothing_behind_the_product_is_written(pool: Pool) -> None:
    for scheme, quantizes in (("int8", 128), ("bf16", 0)):
        product = Product(make_native_matrix(scheme, 13, 128), make_values(3, 128))
        product.quantizes = quantizes
        output = torch.full((4, 13), 7.0)
        product.run(pool, output, quantized_rows(pool, product.values, 128))
        assert (output[3] == 7.0).all()
        assert (output[:3] != 7.0).all()


def test_quantized_codes_scales_and_sums_equal_the_reference(pool: Pool) -> None:
    values = make_values(9, 384) * torch.logspace(-6, 6, 9).unsqueeze(1)
    values[3, 128:256] = 0
    found = quantized_rows(pool, values, 128)
    codes, scales, sums = quantize(values)
    assert torch.equal(found.codes, codes)
    assert torch.equal(found.scales[:, :3], scales)
    assert torch.equal(found.sums[:, :3], sums)


@pytest.mark.parametrize("group", [128, 64, 32])
def test_every_group_has_a_largest_code_of_127(pool: Pool, group: int) -> None:
    values = make_values(3, 256)
    found = quantized_rows(pool, values, group)
    largest = found.codes.abs().view(3, -1, group).amax(-1)
    assert (largest == 127).all()
    assert relative_error(found.values(256), values.double()) < 0.01


def test_halves_are_rounded_to_even(pool: Pool) -> None:
    values = torch.zeros(1, 128)
    values[0, :6] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -3.5])
    assert quantized_rows(pool, values, 128).codes[0, :6].tolist() == [127, 0, 2, 2, 0, -4]


def test_columns_behind_the_last_are_zero(pool: Pool) -> None:
    found = quantized_rows(pool, make_values(2, 200), 128)
    assert (found.codes[:, 200:] == 0).all()
    assert (found.codes[:, :200] != 0).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_spoil_their_product_visibly(pool: Pool, bad: float) -> None:
    values = make_values(2, 128)
    values[1, 77] = bad
    product = Product(make_native_matrix("int4", 16, 128, 128), values, quantizes=128)
    output = torch.zeros(2, 16)
    product.run(pool, output, quantized_rows(pool, values, 128))
    assert output[0].isfinite().all()
    assert not output[1].isfinite().any()


@pytest.mark.parametrize("tiny", [0.0, 1e-40, 1e-38])
def test_numbers_too_small_for_a_scale_are_zeros(pool: Pool, tiny: float) -> None:
    found = quantized_rows(pool, torch.full((1, 128), tiny), 128)
    assert found.values(128).abs().max() == 0
    assert found.sums.abs().max() == 0
