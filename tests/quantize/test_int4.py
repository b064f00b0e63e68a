from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.schemes import Scheme
from zse.quantize.int4 import quantize_int4
from zse.quantize.scheme import quantize_rows


def come_back(weight: torch.Tensor, group_size: int = 128) -> torch.Tensor:
    parts = quantize_int4(weight.clone(), group_size)
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
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "3", "5"])
def test_refined_error_is_a_tenth_below_plain_rounding(kind: str, group_size: int) -> None:
    weight = random_weight(kind)
    refined, plain = come_back(weight, group_size) - weight, rounded(weight, group_size) - weight
    assert refined.square().mean() <= 0.9 * plain.square().mean()


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
    parts = quantize_int4(weight, 128, importance)
    weighted = restored(Scheme.INT4, parts, weight.shape, 128) - weight
    plain = come_back(weight) - weight
    assert (weighted.square() * importance).sum() < 0.95 * (plain.square() * importance).sum()


def test_equal_importance_changes_nothing() -> None:
    weight = random_weight("5")
    plain, counted = quantize_int4(weight, 64), quantize_int4(weight, 64, torch.full((512,), 2.0))
    assert all(torch.equal(plain[role], counted[role]) for role in plain)
