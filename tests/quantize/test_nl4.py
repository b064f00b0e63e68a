from __future__ import annotations

import pytest
import torch
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.as_torch import scale_of_minifloat
from zse.format.nl4 import NL4_CODES
from zse.format.schemes import Scheme
from zse.quantize.nl4 import quantize_nl4
from zse.quantize.scheme import quantize_rows


def squared_errors(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return what each group [N, G] leaves at its scale, with the nearest levels."""
    levels = torch.tensor(NL4_CODES).double() * scale.double().unsqueeze(-1)  # [N, 16]
    return (weight.double().unsqueeze(-1) - levels.unsqueeze(1)).square().amin(-1).sum(-1)


@pytest.mark.parametrize("group_size", [16, 32])
@pytest.mark.parametrize("power", [-17, -9, -2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_levels_times_a_scale_come_back_exactly(sign: int, power: int, group_size: int) -> None:
    weight = (torch.tensor(NL4_CODES) * (sign * 1.125 * 2.0**power)).repeat(4).view(2, 32)
    parts = quantize_nl4(weight, group_size)
    assert (scale_of_minifloat(parts["signed_scale"]) == sign * 1.125 * 2.0**power).all()
    assert torch.equal(restored(Scheme.NL4, parts, weight.shape, group_size), weight)


@pytest.mark.parametrize("group_size", [16, 32])
def test_codes_are_the_nearest_and_no_scale_beside_is_better(group_size: int) -> None:
    torch.manual_seed(2)
    weight = torch.randn(32, 256) * 0.02
    parts = quantize_nl4(weight, group_size)
    groups = weight.view(-1, group_size)
    stored = parts["signed_scale"].view(-1)
    found = (restored(Scheme.NL4, parts, weight.shape, group_size) - weight).view(groups.shape)
    best = squared_errors(groups, scale_of_minifloat(stored))
    torch.testing.assert_close(found.double().square().sum(1), best)
    turned = squared_errors(groups, scale_of_minifloat(stored ^ 128))
    smaller = squared_errors(groups, scale_of_minifloat(stored - 1))
    assert (best <= turned * 1.0001).all()
    assert (best <= smaller * 1.0001).double().mean() > 0.95  # the least one tried may win


@pytest.mark.parametrize(("group_size", "limit"), [(16, 0.068), (32, 0.077)])
def test_gaussian_weights_lose_less_than_with_q4_k_or_as_little(
    group_size: int, limit: float
) -> None:
    torch.manual_seed(3)
    weight = torch.randn(64, 1024) * 0.02
    found = restored(Scheme.NL4, quantize_nl4(weight, group_size), weight.shape, group_size)
    assert (found - weight).norm() / weight.norm() < limit


def test_inputs_that_count_more_lose_less() -> None:
    torch.manual_seed(5)
    weight = torch.randn(64, 64)
    importance = torch.ones(64)
    importance[::4] = 100.0

    def lost(parts: dict[str, torch.Tensor]) -> float:
        rest = restored(Scheme.NL4, parts, weight.shape, 16) - weight
        return float((rest.square() * importance).sum())

    weighted = quantize_rows(Scheme.NL4, weight, 16, importance)
    assert lost(weighted) < 0.9 * lost(quantize_nl4(weight, 16))
    alike = quantize_nl4(weight, 16, torch.full((64,), 2.0))
    assert torch.equal(alike["qweight"], quantize_nl4(weight, 16)["qweight"])


def test_bytes_do_not_depend_on_how_rows_are_cut() -> None:
    torch.manual_seed(4)
    weight = torch.randn(9, 96) * torch.rand(9, 1)
    whole = quantize_nl4(weight, 16)
    cut = [quantize_nl4(rows, 16) for rows in weight.split([1, 5, 3])]
    for role, part in whole.items():
        assert torch.equal(torch.cat([piece[role] for piece in cut]), part)


def test_zeros_stay_zeros_and_weights_below_the_least_scale_become_small() -> None:
    weight = torch.zeros(1, 64)
    weight[0, 32:] = 1e-9
    found = restored(Scheme.NL4, quantize_nl4(weight, 16), weight.shape, 16)
    assert not found[0, :32].any()
    assert found.abs().max() <= 2.0**-17


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -60.0])
def test_a_weight_that_no_scale_reaches_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 64)
    weight[0, 5] = bad
    with pytest.raises(ConversionError, match=r"not finite|above the range"):
        quantize_rows(Scheme.NL4, weight, 16)


def test_the_largest_weight_of_the_range_is_kept() -> None:
    weight = torch.zeros(1, 32)
    weight[0, 3] = 59.5
    found = restored(Scheme.NL4, quantize_nl4(weight, 32), weight.shape, 32)
    assert found[0, 3] == pytest.approx(59.5, rel=0.002)
