from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.errors import ConversionError
from zse.quantize.int4 import Int4


def squared_error(scheme: Int4, weight: torch.Tensor) -> float:
    parts = scheme.quantize_blocks(weight.clone())
    return (scheme.dequantize_blocks(parts) - weight).square().mean().item()


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
    refined = squared_error(Int4(group_size=group_size), weight)
    plain = squared_error(Int4(group_size=group_size, refine=False), weight)
    assert refined <= 0.9 * plain


def test_plain_rounding_is_within_half_a_step() -> None:
    weight = random_weight("gaussian")
    scheme = Int4(refine=False)
    parts = scheme.quantize_blocks(weight.clone())
    scale = parts["scale_zero"].view(torch.float16).view(128, 4, 2)[:, :, 0].float()
    error = (scheme.dequantize_blocks(parts) - weight).abs().view(128, 4, 128)
    # Float16 rounding of the zero point adds up to half a unit in its last place.
    assert bool((error <= scale.unsqueeze(2) * 0.55).all())


@pytest.mark.parametrize("value", [0.0, 0.5, -1.25])
def test_constant_group_is_exact(value: float) -> None:
    weight = torch.full((2, 128), value)
    scheme = Int4()
    assert torch.equal(scheme.dequantize_blocks(scheme.quantize_blocks(weight.clone())), weight)


def test_sixteen_level_weight_is_nearly_exact() -> None:
    levels = torch.arange(16).repeat(8).view(1, 128) * 0.25 - 2.0
    scheme = Int4()
    restored = scheme.dequantize_blocks(scheme.quantize_blocks(levels.clone()))
    assert torch.allclose(restored, levels, atol=2e-3)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 9), threads=st.sampled_from([1, 2, 3]), group=st.sampled_from([32, 128]))
def test_bytes_do_not_depend_on_chunks_or_threads(rows: int, threads: int, group: int) -> None:
    weight = random_weight("5")[:36]
    scheme = Int4(group_size=group)
    expected = scheme.quantize_blocks(weight.clone())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        pieces = [scheme.quantize_blocks(chunk.clone()) for chunk in weight.split(rows)]
    finally:
        torch.set_num_threads(before)
    for role, whole in expected.items():
        assert torch.equal(torch.cat([piece[role] for piece in pieces]), whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_value_that_float16_cannot_scale_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 128)
    weight[0, 5] = bad
    with pytest.raises(ConversionError, match="not finite"):
        Int4().quantize_blocks(weight)


def test_input_is_left_alone() -> None:
    weight = random_weight("gaussian")
    before = weight.clone()
    Int4().quantize_blocks(weight)
    assert torch.equal(weight, before)
