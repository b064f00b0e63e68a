"""Norms that products begin are those that would follow them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from interpreted import InterpretedLauncher  # chooses the interpreter; before triton

sys.path.insert(0, str(Path(__file__).parent))

from closed_products import Products, faults, no_codes

from zse.errors import UnsupportedModelError
from zse.kernels.linear.closed import Begun, multiply_norm
from zse.kernels.linear.closed_forms import closed_form
from zse.kernels.linear.direct_forms import direct
from zse.kernels.linear.variants import VARIANTS, decode_forms, gemv

SEVERAL_WARPS = gemv("int4", 128, 1, r=4, t=2, c=32)
FORMS = {"int4": SEVERAL_WARPS, "int8": gemv("int8", 0, 1, r=4, t=2, c=32)}


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("scheme", FORMS)
def test_a_norm_that_is_begun_is_one_that_follows(scheme: str, splits: int) -> None:
    assert faults(Products(InterpretedLauncher(), FORMS[scheme], 1, splits), 128, 256) == []


def test_tokens_in_several_tiles_have_counters_of_their_own() -> None:
    assert faults(Products(InterpretedLauncher(), SEVERAL_WARPS, 2, 2), 128, 128) == []


@pytest.mark.parametrize("rows", [192, 8320])
def test_a_norm_of_other_rows_is_refused(rows: int) -> None:
    products = Products(InterpretedLauncher(), SEVERAL_WARPS, 1, 1)
    matrix, inputs = products.matrix(rows, 128), no_codes(1, 128, "cpu").activation
    begun = Begun(inputs=no_codes(1, 128, "cpu").activation, squares=0, epsilon=1e-5)
    with pytest.raises(UnsupportedModelError, match="in groups of 128"):
        multiply_norm(
            products.launcher, matrix.weight, inputs, 0, products.plan(matrix), begun, 0, 0, 0
        )


def test_every_form_for_one_token_has_its_twins_compiled() -> None:
    for scheme, group in (("int4", 128), ("int8", 0)):
        for form in decode_forms(scheme, group, 1):
            assert closed_form(form, closes=True) in VARIANTS
            assert closed_form(form, closes=False) in VARIANTS


@pytest.mark.parametrize(
    "form",
    [
        gemv("int4", 64, 1, r=4, t=4, c=8),
        gemv("int4", 128, 2, r=4, t=4, c=8),
        direct("int4", bm=8, depth=2),
    ],
)
def test_other_forms_begin_no_norm(form: object) -> None:
    assert closed_form(form, closes=True) is None  # type: ignore[arg-type]
