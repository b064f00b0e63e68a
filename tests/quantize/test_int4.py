from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.schemes import Scheme
from zse.quantize.int4 import fit, quantize_int4, quantize_whole_numbers
from zse.quantize.scheme import quantize_rows

KINDS = ["gaussian", "laplace", "3", "5"]


def come_back(
    weight: torch.Tensor, group_size: int = 128, importance: torch.Tensor | None = None
) -> torch.Tensor:
    parts = quantize_int4(weight.clone(), group_size, importance)
    return restored(Scheme.INT4, parts, weight.shape, group_size)


def rounded(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Plain min-max rounding, the scale and the zero point in float16."""
    groups = weight.reshape(-1, group_size)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale, offset = ((high - low) / 15).half().float(), low.half().float()
    codes = ((groups - offset) / scale).round().clamp(0, 15)
    return (codes * scale + offset).view(weight.shape)


def random_weight(kind: str) -> torch.Tensor:
    torch.manual_seed(3)
    shape = (128, 512)
    if kind == "gaussian":
        return torch.randn(shape) * 0.02
    if kind == "laplace":
        return torch.distributions.Laplace(0.0, 0.02).sample(shape)
    return torch.distributions.StudentT(float(kind)).sample(shape) * 0.02


@pytest.mark.parametrize("group_size", [128, 64, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_no_weight_is_more_than_half_a_step_off(kind: str, group_size: int) -> None:
    weight = random_weight(kind)
    scale = fit(weight, group_size).scale_zero[:, :, :1].float()  # [num_rows, num_groups, 1]
    off = (come_back(weight, group_size) - weight).unflatten(1, (-1, group_size)).abs()
    assert (off <= 0.51 * scale).all()  # scale and zero point are rounded to float16


@pytest.mark.parametrize("group_size", [128, 64, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_span_the_range_of_a_group(kind: str, group_size: int) -> None:
    groups = random_weight(kind).unflatten(1, (-1, group_size))
    span = groups.amax(2) - groups.amin(2)
    found = fit(groups.flatten(1), group_size)
    assert torch.allclose(15 * found.scale_zero[:, :, 0].float(), span, rtol=1e-3)


@pytest.mark.parametrize("group_size", [128, 64, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fitted_zero_point_loses_less_than_the_smallest_weight_for_it(
    kind: str, group_size: int
) -> None:
    weight = random_weight(kind)
    fitted, plain = come_back(weight, group_size) - weight, rounded(weight, group_size) - weight
    assert fitted.square().mean() <= 0.97 * plain.square().mean()


@pytest.mark.parametrize("shift", [-0.3, 0.1, 0.3])
def test_the_zero_point_suits_most_weights_of_a_group(shift: float) -> None:
    inner = (torch.randint(1, 14, (4, 126), generator=torch.Generator().manual_seed(5)) + shift) / 8
    ends = torch.tensor([0.0, 15 / 8]).expand(4, 2)
    weight = torch.cat([inner, ends], dim=1)
    off = (come_back(weight) - weight)[:, :126].abs() * 8
    assert off.max() < 0.02  # of a step, where the ends of the range alone would leave 0.1 or 0.3


@pytest.mark.parametrize("group_size", [128, 64, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_by_importance_the_error_is_a_tenth_below_plain_rounding(
    kind: str, group_size: int
) -> None:
    weight = random_weight(kind)
    alike = torch.ones(weight.shape[1])
    refined, plain = come_back(weight, group_size, alike) - weight, rounded(weight, group_size)
    assert refined.square().mean() <= 0.9 * (plain - weight).square().mean()


@pytest.mark.parametrize("value", [0.0, 0.5, -1.25])
def test_constant_group_is_exact(value: float) -> None:
    weight = torch.full((2, 128), value)
    assert torch.equal(come_back(weight), weight)


def test_sixteen_level_weight_is_nearly_exact() -> None:
    levels = torch.arange(16).repeat(8).view(1, 128) * 0.25 - 2.0
    assert torch.allclose(come_back(levels), levels, atol=2e-3)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 9), threads=st.sampled_from([1, 2, 3]), group=st.sampled_from([32, 128]))
def test_bytes_do_not_depend_on_chunks_or_threads(rows: int, threads: int, group: int) -> None:
    weight = random_weight("5")[:36]
    expected = quantize_int4(weight.clone(), group)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        pieces = [quantize_int4(chunk.clone(), group) for chunk in weight.split(rows)]
    finally:
        torch.set_num_threads(before)
    for role, whole in expected.items():
        assert torch.equal(torch.cat([piece[role] for piece in pieces]), whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_value_that_float16_cannot_scale_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 128)
    weight[0, 5] = bad
    with pytest.raises(ConversionError, match="not finite"):
        quantize_rows(Scheme.INT4, weight, 128)


def test_input_is_left_alone() -> None:
    weight = random_weight("gaussian")
    before = weight.clone()
    quantize_int4(weight, 128)
    assert torch.equal(weight, before)


def test_error_moves_to_inputs_that_count_little() -> None:
    weight = random_weight("gaussian")
    importance = torch.rand(weight.shape[1]).square() + 1e-3
    weighted = come_back(weight, 128, importance) - weight
    alike = come_back(weight, 128, torch.ones(weight.shape[1])) - weight
    assert (weighted.square() * importance).sum() < 0.95 * (alike.square() * importance).sum()


@pytest.mark.parametrize("scheme", [Scheme.INT3, Scheme.INT2])
def test_equal_importance_changes_nothing_of_few_codes(scheme: Scheme) -> None:
    weight, alike = random_weight("5"), torch.full((512,), 2.0)
    plain = quantize_whole_numbers(scheme, weight, 64)
    counted = quantize_whole_numbers(scheme, weight, 64, alike)
    assert all(torch.equal(plain[role], counted[role]) for role in plain)


def test_only_the_ratios_of_importance_count() -> None:
    weight, importance = random_weight("5"), torch.rand(512) + 0.1
    once, twice = (quantize_int4(weight, 64, importance * times) for times in (1, 2))
    assert all(torch.equal(once[role], twice[role]) for role in once)
