"""Products of turned 8-bit numbers are as near to exact ones as int8 can be, outliers or none."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from interpreted import InterpretedLauncher  # chooses the interpreter; before triton

sys.path.insert(0, str(Path(__file__).parent))

import torch
from matrices import Matrix, make_matrix, relative_error

from zse.device.facts_of_gpus import H200
from zse.kernels.layout import Plain, Turned
from zse.kernels.linear.launch_8bit import (
    find_row_maxima,
    linear_8bit,
    linear_8bit_alike,
    linear_8bit_split,
    maxima_bytes,
    splits_of_turned,
    turn_activations,
    turned_at,
    turned_bytes,
)
from zse.kernels.linear.reference import turn_and_round, turned_product
from zse.kernels.linear.variants import TOKEN_GROUPS, matmul_8bit_apart
from zse.kernels.linear.weight import LinearWeight

SCRATCH_ROWS = 130


def multiply(
    matrix: Matrix,
    values: torch.Tensor,
    output_type: str = "fp32",
    maxima: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return [tokens, rows] of bfloat16 activations, by slabs of at most ``SCRATCH_ROWS`` rows."""
    tokens, columns = values.shape
    launcher = InterpretedLauncher()
    codes = torch.zeros(turned_bytes(tokens, columns), dtype=torch.uint8)
    turned = turned_at(codes.data_ptr(), tokens, columns)
    plain = Plain(rows=tokens, columns=columns, values=values.data_ptr())
    turn_activations(launcher, plain, turned)
    dtype = torch.float32 if output_type == "fp32" else torch.bfloat16
    outputs = torch.full((tokens, matrix.weight.rows), float("nan"), dtype=dtype)
    scratch = torch.zeros(SCRATCH_ROWS * (columns + 160), dtype=torch.uint8)
    linear_8bit(
        launcher,
        matrix.weight,
        turned,
        outputs.data_ptr(),
        output_type,
        maxima_address=0 if maxima is None else maxima.data_ptr(),
        scratch_address=scratch.data_ptr() // 16 * 16 + 16,
        scratch_bytes=scratch.numel() - 16,
    )
    return outputs


def outlying(tokens: int, columns: int) -> torch.Tensor:
    """Return activations of which two columns are fifty times as large as the others."""
    values = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(7))
    values[:, [3, columns - 5]] *= 50
    return values.bfloat16()


@pytest.mark.parametrize(
    ("scheme", "group"),
    [
        ("int4", 128),
        ("int4", 32),
        ("int3", 64),
        ("int2", 32),
        ("nf4", 64),
        ("mxfp4", 32),
        ("nl4", 32),
        ("nl4_pairs", 32),
    ],
)
def test_products_of_every_scheme_are_near_to_exact_ones(scheme: str, group: int) -> None:
    matrix, values = make_matrix(scheme, 16, 256, group), outlying(3, 256)
    found = multiply(matrix, values)
    assert relative_error(found, values.double() @ matrix.exact.T) <= 2e-2


def test_both_sides_are_rounded_as_the_reference_rounds_them() -> None:
    matrix, values = make_matrix("int8", 16, 256), outlying(3, 256)
    assert relative_error(multiply(matrix, values), turned_product(values, matrix.exact)) <= 1e-5


def test_outliers_of_a_token_cost_the_others_little() -> None:
    matrix, values = make_matrix("int4", 32, 512, 128), outlying(4, 512)
    scale = values.double().abs().amax(-1, keepdim=True) / 127
    plain = torch.round(values.double() / scale) * scale
    quiet = torch.ones(512, dtype=torch.float64)
    quiet[[3, 507]] = 0

    def error(product: torch.Tensor) -> float:
        """In units of what the quiet columns make."""
        exact, rest = ((each @ matrix.exact.T) for each in (values.double(), values * quiet))
        return ((product - exact).norm() / rest.norm()).item()

    assert error(multiply(matrix, values).double()) < error(plain @ matrix.exact.T) / 2


def test_the_result_may_have_16_bits_and_the_last_slab_fewer_rows() -> None:
    matrix, values = make_matrix("int4", 144, 128, 128), outlying(2, 128)
    found = multiply(matrix, values, "bf16")
    assert relative_error(found, values.double() @ matrix.exact.T) <= 2e-2


def test_maxima_that_were_found_before_give_the_same_product() -> None:
    matrix, values = make_matrix("int4", 144, 1152, 128), outlying(2, 1152)
    maxima = torch.zeros(maxima_bytes(matrix.weight) // 4)
    find_row_maxima(InterpretedLauncher(), matrix.weight, maxima.data_ptr())
    assert multiply(matrix, values, maxima=maxima).equal(multiply(matrix, values))


def test_a_token_and_a_row_of_zeros_stay_zeros() -> None:
    matrix, values = make_matrix("int8", 16, 128), outlying(2, 128)
    matrix.kept[0][5] = 0
    values[1] = 0
    found = multiply(matrix, values)
    assert not found[1].any()
    assert not found[:, 5].any()
    assert found[0, :5].all()


def test_products_lie_in_rows_of_a_wider_result_and_nothing_is_written_past_the_end() -> None:
    tokens, rows, columns, wide = 37, 80, 256, 96
    generator = torch.Generator().manual_seed(3)
    values, weights = (
        torch.randint(-127, 128, (count, columns), generator=generator, dtype=torch.int8)
        for count in (tokens, rows)
    )
    token_scales, row_scales = torch.rand(tokens) + 0.5, torch.rand(rows) + 0.5
    outputs = torch.full((tokens + 1, wide), float("nan"))
    form = matmul_8bit_apart("fp32")
    addresses = [each.data_ptr() for each in (values, token_scales, weights, row_scales, outputs)]
    InterpretedLauncher().launch(
        form, (2, 1, 1), *addresses, tokens, rows // 16, columns // 128, wide // 16
    )
    wanted = values.double() @ weights.double().T * token_scales[:, None] * row_scales[None, :]
    assert relative_error(outputs[:tokens, :rows], wanted) <= 1e-6
    assert outputs[tokens:].isnan().all()
    assert outputs[:, rows:].isnan().all()


@pytest.mark.parametrize(
    ("tokens", "columns", "splits"), [(5, 512, 1), (5, 512, 3), (130, 1536, 2), (130, 8192, 5)]
)
def test_programs_that_share_a_tile_leave_summands_of_the_product(
    tokens: int, columns: int, splits: int
) -> None:
    rows = 48
    generator = torch.Generator().manual_seed(3)
    values, weights = (
        torch.randint(-127, 128, (count, columns), generator=generator, dtype=torch.int8)
        for count in (tokens, rows)
    )
    token_scales, row_scales = torch.rand(tokens) + 0.5, torch.rand(rows) + 0.5
    outputs = torch.full((splits + 1, tokens, rows), float("nan"))
    turned, kept = (
        Turned(rows=len(codes), columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr())
        for codes, scales in ((values, token_scales), (weights, row_scales))
    )
    matrix = LinearWeight(scheme="int8", rows=rows, columns=columns, weights=0)
    linear_8bit_split(
        InterpretedLauncher(), matrix, turned, outputs.data_ptr(), "fp32", kept=kept, splits=splits
    )
    wanted = values.double() @ weights.double().T * token_scales[:, None] * row_scales[None, :]
    assert relative_error(outputs[:splits].sum(0), wanted) <= 1e-6
    assert outputs[splits:].isnan().all()


def test_sums_of_a_token_are_those_of_integers_whatever_form_its_company_takes() -> None:
    rows, columns, splits, most = 528, 640, 2, 300
    generator = torch.Generator().manual_seed(4)
    values, weights = (
        torch.randint(-127, 128, (count, columns), generator=generator, dtype=torch.int8)
        for count in (most, rows)
    )
    token_scales, row_scales = torch.rand(most) + 0.5, torch.rand(rows) + 0.5
    kept = Turned(
        rows=rows, columns=columns, codes=weights.data_ptr(), scales=row_scales.data_ptr()
    )
    matrix = LinearWeight(scheme="int8", rows=rows, columns=columns, weights=0)
    ends = (0, 2 * 128, columns)
    exact = torch.stack(
        [values[:, a:b].int() @ weights[:, a:b].int().T for a, b in itertools.pairwise(ends)]
    )
    wanted = exact.float() * token_scales[:, None] * row_scales
    few, many = (InterpretedLauncher(replace(H200, multiprocessors=count)) for count in (2, 132))
    for launcher, tokens in ((few, 1), (few, most), (many, 130)):
        inputs = Turned(
            rows=tokens, columns=columns,
            codes=values.data_ptr(), scales=token_scales.data_ptr(),
        )  # fmt: skip
        outputs = torch.full((splits, tokens, rows), float("nan"))
        linear_8bit_alike(
            launcher, matrix, inputs, outputs.data_ptr(), "fp32", kept=kept, splits=splits
        )
        assert outputs.equal(wanted[:, :tokens]), tokens
    assert len({*few.launched, *many.launched}) == 3


def test_few_tiles_are_shared_and_many_are_not() -> None:
    assert splits_of_turned(3584, 18944, 128, H200) == 4
    assert splits_of_turned(3584, 3584, 128, H200) == 4
    assert splits_of_turned(37888, 3584, 128, H200) == 1
    assert splits_of_turned(3584, 18944, 256, H200) == 4
    assert splits_of_turned(3584, 3584, 256, H200) == 2
    assert splits_of_turned(4608, 3584, 256, H200) == 3
    assert splits_of_turned(3584, 3584, 256, replace(H200, target="sm_80")) == 4


def test_a_token_that_is_taken_in_parts_has_one_scale() -> None:
    columns = 128 * (TOKEN_GROUPS + 2)
    values = outlying(2, columns)
    buffer = torch.zeros(turned_bytes(2, columns), dtype=torch.uint8)
    turned = turned_at(buffer.data_ptr(), 2, columns)
    plain = Plain(rows=2, columns=columns, values=values.data_ptr())
    turn_activations(InterpretedLauncher(), plain, turned)
    codes = buffer[: 2 * columns].view(torch.int8).view(2, columns)
    scales = buffer[-256:].view(torch.float32)[:2] * 128
    found = codes.double() * scales.double()[:, None]
    assert relative_error(found, turn_and_round(values)) <= 1e-5
