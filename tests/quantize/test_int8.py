from __future__ import annotations

import pytest
import torch
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.schemes import Scheme
from zse.quantize.int8 import quantize_int8
from zse.quantize.scheme import quantize_rows


def test_error_is_at_most_half_a_step() -> None:
    torch.manual_seed(4)
    weight = torch.randn(32, 100)
    parts = quantize_int8(weight)
    error = (restored(Scheme.INT8, parts, weight.shape) - weight).abs()
    assert bool((error <= parts["scale"].unsqueeze(1) * 0.5001).all())


def test_largest_value_of_a_row_is_127() -> None:
    weight = torch.tensor([[0.5, -2.0, 1.0], [3.0, 0.1, -0.2]])
    codes = quantize_int8(weight)["qweight"]
    assert codes.abs().amax(1).tolist() == [127, 127]


def test_zero_row_stays_zero() -> None:
    parts = quantize_int8(torch.zeros(2, 8))
    assert not restored(Scheme.INT8, parts, torch.Size((2, 8))).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weight_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 8)
    weight[0, 3] = bad
    with pytest.raises(ConversionError):
        quantize_rows(Scheme.INT8, weight)
