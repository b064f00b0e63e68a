"""Products of every scheme equal the float64 reference within its tolerance, tails included."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interpreted import H200, InterpretedLauncher  # chooses the interpreter; before triton

sys.path.insert(0, str(Path(__file__).parent))

import torch
from matrices import make_inputs, make_matrix, relative_error

from zse.errors import UnsupportedModelError
from zse.kernels.linear.definitions import MATMUL_STREAM
from zse.kernels.linear.direct_forms import DIRECT_FORMATS, direct, direct_forms
from zse.kernels.linear.launch import linear, linear_prefill
from zse.kernels.linear.plan import LinearPlan, plan_linear, tile_of
from zse.kernels.linear.reference import QUANTIZED_TOLERANCE, TOLERANCE
from zse.kernels.linear.reference import linear as reference
from zse.kernels.linear.variants import STEP_COLUMNS, dot, gemv, imma, matmul

if TYPE_CHECKING:
    from zse.kernels.variant import Variant

GROUPED = [
    *((scheme, group) for scheme in ("int4", "nf4") for group in (128, 64, 32)),
    *((scheme, group) for scheme in ("int3", "int2") for group in (64, 32)),
    ("mxfp4", 32),
    ("nl4", 32),
    ("nl4_pairs", 32),
]


def check(
    variant: Variant, scheme: str, group: int, rows: int, n: int, k: int, splits: int
) -> None:
    quantized = any(argument.name == "codes" for argument in variant.arguments)
    matrix = make_matrix(scheme, n, k, group)
    inputs = make_inputs(rows, k, quantized=quantized)
    outputs = torch.full((splits, rows, n), float("nan"))
    plan = LinearPlan(variant=variant, splits=splits, rows=rows, columns=n)
    partials = linear(
        InterpretedLauncher(), matrix.weight, inputs.activation, outputs.data_ptr(), plan
    )
    assert (partials.rows, partials.columns, partials.splits) == (rows, n, splits)
    wanted = reference(inputs.exact, matrix.int8_values if quantized else matrix.exact)
    limit = QUANTIZED_TOLERANCE if quantized else TOLERANCE
    assert relative_error(outputs.double().sum(0), wanted) <= limit


@pytest.mark.parametrize(("scheme", "group"), GROUPED)
def test_a_few_int8_tokens_times_four_bit_rows(scheme: str, group: int) -> None:
    check(gemv(scheme, group, 1, r=2, t=4, c=8), scheme, group, 1, 21, 384, 1)


@pytest.mark.parametrize(("rows", "width"), [(2, 2), (3, 4), (4, 4), (5, 4)])
@pytest.mark.parametrize(
    ("scheme", "group"),
    [("int4", 64), ("int3", 64), ("int2", 32), ("nf4", 64), ("nl4_pairs", 32), ("mxfp4", 32)],
)
def test_two_to_five_int8_tokens(scheme: str, group: int, rows: int, width: int) -> None:
    check(gemv(scheme, group, width, r=2, t=4, c=8), scheme, group, rows, 11, 256, 2)


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize(("t", "c"), [(4, 8), (2, 16), (1, 32)])
def test_splits_that_do_not_divide_the_row_cover_it_once(t: int, c: int, splits: int) -> None:
    check(gemv("int4", 128, 1, r=4, t=t, c=c), "int4", 128, 1, 19, 640, splits)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("scheme", ["int8", "bf16", "fp16"])
def test_a_few_tokens_times_whole_rows(scheme: str, rows: int, width: int) -> None:
    check(gemv(scheme, 0, width, r=2, t=4, c=8), scheme, 0, rows, 18, 384, 2)


@pytest.mark.parametrize(("scheme", "group"), GROUPED)
def test_a_batch_of_16_bit_tokens_times_four_bit_rows(scheme: str, group: int) -> None:
    check(dot(scheme, group, bn=16, bm=16), scheme, group, 3, 21, 384, 2)


@pytest.mark.parametrize("scheme", ["int8", "bf16", "fp16"])
def test_a_batch_of_16_bit_tokens_times_whole_rows(scheme: str) -> None:
    check(dot(scheme, 0, bn=16, bm=16), scheme, 0, 17, 21, 192, 2)


@pytest.mark.parametrize(
    ("scheme", "group"),
    [
        ("int4", 128),
        ("int4", 64),
        ("int3", 64),
        ("int2", 64),
        ("nf4", 128),
        ("nf4", 64),
        ("int8", 0),
    ],
)
def test_a_batch_of_int8_tokens(scheme: str, group: int) -> None:
    check(imma(scheme, group, bn=16, bm=16), scheme, group, 18, 21, 384, 2)


@pytest.mark.parametrize(("scheme", "group"), DIRECT_FORMATS)
def test_forms_whose_weights_go_to_products_directly_are_given_what_others_are(
    scheme: str, group: int
) -> None:
    check(direct(scheme, bm=8, depth=2), scheme, group, 7, 21, 384, 2)


@pytest.mark.parametrize(("scheme", "group"), [("int4", 128), ("nf4", 64), ("int8", 0)])
def test_tiles_of_int8_tokens_have_the_same_bits_whatever_their_size(
    scheme: str, group: int
) -> None:
    matrix, inputs = make_matrix(scheme, 21, 640, group), make_inputs(3, 640, quantized=True)
    found = []
    for variant in (
        imma(scheme, group, bn=16, bm=16),
        imma(scheme, group, bn=32, bm=32),
        *direct_forms(scheme, group, 8)[:1],
    ):
        outputs = torch.full((2, 3, 21), float("nan"))
        plan = LinearPlan(variant=variant, splits=2, rows=3, columns=21)
        launcher = InterpretedLauncher()
        linear(launcher, matrix.weight, inputs.activation, outputs.data_ptr(), plan)
        found.append(outputs)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize(
    ("scheme", "group"),
    [
        ("int4", 128),
        ("int4", 32),
        ("int3", 64),
        ("int2", 32),
        ("nf4", 64),
        ("mxfp4", 32),
        ("nl4_pairs", 32),
        ("int8", 0),
        ("bf16", 0),
    ],
)
@pytest.mark.parametrize(("output_type", "n"), [("fp32", 300), ("bf16", 304)])
def test_prefill_multiplies_slab_by_slab(scheme: str, group: int, output_type: str, n: int) -> None:
    tokens, k = 5, 128
    matrix = make_matrix(scheme, n, k, group)
    inputs = make_inputs(tokens, k, quantized=False)
    dtype = torch.float32 if output_type == "fp32" else torch.bfloat16
    outputs = torch.full((tokens, n), float("nan"), dtype=dtype)
    scratch = torch.full((256, k), float("nan"), dtype=torch.bfloat16)
    launcher = InterpretedLauncher()
    linear_prefill(
        launcher,
        matrix.weight,
        inputs.activation,
        outputs.data_ptr(),
        output_type,
        scratch.data_ptr(),
        scratch.numel() * 2,
    )
    assert len(launcher.launched) == (1 if scheme == "bf16" else 4)
    wanted = reference(inputs.exact, matrix.exact)
    assert relative_error(outputs, wanted) <= TOLERANCE


def test_programs_that_stay_cover_every_tile_and_nothing_past_the_end() -> None:
    tokens, n, k, wide = 37, 80, 128, 96
    values = torch.randn(tokens, k).bfloat16()
    weights = torch.randn(n, k).bfloat16()
    outputs = torch.full((tokens + 1, wide), float("nan"))
    form = matmul("bf16", "fp32", even=True, bm=16, bn=32, stages=2, kernel=MATMUL_STREAM)
    addresses = (values.data_ptr(), weights.data_ptr(), outputs.data_ptr())
    InterpretedLauncher().launch(
        form, (2, 1, 1), *addresses, tokens, n // 16, k // STEP_COLUMNS, wide // 16
    )
    wanted = values.double() @ weights.double().T
    assert relative_error(outputs[:tokens, :n], wanted) <= TOLERANCE
    assert outputs[tokens:].isnan().all()
    assert outputs[:, n:].isnan().all()


def test_prefill_says_when_the_scratch_is_too_small() -> None:
    matrix = make_matrix("int4", 300, 128, 128)
    inputs = make_inputs(2, 128, quantized=False)
    with pytest.raises(UnsupportedModelError, match="expected at least 256"):
        linear_prefill(
            InterpretedLauncher(), matrix.weight, inputs.activation, 16, "fp32", 16, 255 * 256
        )


@pytest.mark.parametrize("rows", [1, 6, 70])
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize(
    ("scheme", "group"), [("int4", 64), ("mxfp4", 32), ("int8", 0), ("bf16", 0)]
)
def test_what_is_planned_is_right(scheme: str, group: int, rows: int, quantized: bool) -> None:
    if scheme == "bf16" and quantized:
        pytest.skip("16-bit matrices take 16-bit activations")
    if scheme == "mxfp4" and quantized:
        rows = min(rows, 18)  # they go few at a time, however many: the interpreter takes long
    weight = make_matrix(scheme, 24, 256, group).weight
    plan = plan_linear(weight, rows, quantized=quantized, device=H200)
    check(plan.variant, scheme, group, rows, 24, 256, plan.splits)
    assert plan.output_bytes == plan.splits * rows * 24 * 4
    assert plan.grid[0] * tile_of(plan.variant)[0] >= 24


def test_activations_of_the_wrong_kind_are_refused() -> None:
    matrix = make_matrix("int4", 16, 128, 128)
    inputs = make_inputs(1, 128, quantized=False)
    plan = plan_linear(matrix.weight, 1, quantized=True, device=H200)
    with pytest.raises(UnsupportedModelError, match="do not fit the plan"):
        linear(InterpretedLauncher(), matrix.weight, inputs.activation, 0, plan)
