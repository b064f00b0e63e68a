from __future__ import annotations

import pytest
import torch
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.mxfp4 import MXFP4_CODES
from zse.format.schemes import Scheme
from zse.quantize.mxfp4 import nearest_codes, quantize_mxfp4
from zse.quantize.scheme import quantize_rows


def test_codes_are_of_the_nearest_value_and_ties_go_to_the_even_one() -> None:
    torch.manual_seed(1)
    values = torch.tensor(MXFP4_CODES[:8])
    middles = (values[:-1] + values[1:]) / 2
    odd = torch.tensor([0, 2, 2, 4, 4, 6, 6])
    assert nearest_codes(middles).tolist() == odd.tolist()
    assert nearest_codes(-middles).tolist() == (odd + 8).tolist()
    drawn = torch.rand(10_000) * 16 - 8
    distances = (drawn.unsqueeze(1) - torch.tensor(MXFP4_CODES)).abs()
    found = torch.tensor(MXFP4_CODES)[nearest_codes(drawn).int()]
    assert torch.equal((drawn - found).abs(), distances.amin(1))


@pytest.mark.parametrize("power", [-120, -1, 0, 30, 120])
def test_values_of_codes_times_a_power_of_two_come_back_exactly(power: int) -> None:
    weight = (torch.tensor(MXFP4_CODES) * 2.0**power).repeat(4).view(2, 32)
    parts = quantize_mxfp4(weight)
    assert parts["exponent"].tolist() == [[127 + power], [127 + power]]
    assert torch.equal(restored(Scheme.MXFP4, parts, weight.shape, 32), weight)


def test_a_group_takes_the_power_of_two_that_leaves_the_smaller_error() -> None:
    torch.manual_seed(2)
    weight = torch.randn(64, 256)
    parts = quantize_mxfp4(weight)
    error = (restored(Scheme.MXFP4, parts, weight.shape, 32) - weight).view(-1, 32).square().sum(1)
    for step in (-1, 1):
        other = {**parts, "exponent": parts["exponent"] + step}
        scale = 2.0 ** (other["exponent"].double() - 127).view(-1, 1)
        scaled = weight.double().view(-1, 32) / scale
        values = torch.tensor(MXFP4_CODES).double()[nearest_codes(scaled).int()]
        assert ((values - scaled).mul(scale).square().sum(1) >= error.double() * 0.999).all()


def test_a_group_of_zeros_stays_zero() -> None:
    parts = quantize_mxfp4(torch.zeros(1, 64))
    assert not restored(Scheme.MXFP4, parts, (1, 64), 32).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_group_whose_largest_weight_is_no_number_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 64)
    weight[0, 5] = bad
    with pytest.raises(ConversionError, match="not finite"):
        quantize_rows(Scheme.MXFP4, weight)
