from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.nf4 import NF4_CODES
from zse.format.schemes import Scheme
from zse.quantize.nf4 import nearest_codes, quantize_nf4
from zse.quantize.scheme import quantize_rows


def midpoints() -> torch.Tensor:
    table = torch.tensor(NF4_CODES)
    return (table[:-1] + table[1:]) / 2


def awkward_values() -> torch.Tensor:
    """Midpoints, their neighbours, cell edges and the ends."""
    middle, cells = midpoints(), torch.linspace(-1, 1, 129)
    up, down = torch.tensor(2.0), torch.tensor(-2.0)
    edges = torch.cat((middle, cells))
    values = torch.cat((edges, torch.nextafter(edges, up), torch.nextafter(edges, down)))
    return values.clamp(-1, 1)


def test_codes_are_the_number_of_midpoints_below() -> None:
    torch.manual_seed(1)
    values = torch.cat((awkward_values(), torch.rand(100_000) * 2 - 1))
    expected = torch.bucketize(values, midpoints(), out_int32=True)
    assert torch.equal(nearest_codes(values).int(), expected)


def come_back(weight: torch.Tensor, importance: torch.Tensor | None = None) -> torch.Tensor:
    parts = quantize_nf4(weight, 64, importance)
    return restored(Scheme.NF4, parts, weight.shape, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_of_the_largest_value_are_those_of_bitsandbytes(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(2)
    weight = (torch.randn(64, 256) * 0.02).to(dtype)
    weight[0, :64] = 0
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    flat = packed.view(-1)
    theirs = torch.stack((flat >> 4, flat & 15), dim=1).view(-1)
    inverse = 1.0 / state.absmax.clamp(min=1e-38)
    scaled = weight.float().view(-1, 64) * inverse.unsqueeze(1)
    assert torch.equal(nearest_codes(scaled.clamp(-1, 1).view(-1)), theirs)


@pytest.mark.parametrize("kind", ["gaussian", "heavy-tailed"])
def test_fitted_scale_takes_a_tenth_off_the_error_of_the_largest_value(kind: str) -> None:
    torch.manual_seed(4)
    weight = torch.randn(64, 512) * 0.02
    if kind == "heavy-tailed":
        weight = torch.distributions.StudentT(4.0).sample((64, 512)) * 0.02
    groups = weight.view(-1, 64)
    largest = groups.abs().amax(1, keepdim=True)
    values = torch.tensor(NF4_CODES)[nearest_codes((groups / largest).view(-1)).int()]
    plain = values.view_as(groups) * largest.half() - groups
    found = come_back(weight) - weight
    assert found.square().sum() < 0.9 * plain.square().sum()


def test_group_that_leans_below_zero_turns_the_table_around() -> None:
    weight = -torch.tensor(NF4_CODES).repeat(4).view(1, 64) * 0.25
    parts = quantize_nf4(weight, 64)
    assert parts["absmax"].item() == -0.25
    assert torch.equal(restored(Scheme.NF4, parts, weight.shape, 64), weight)


def test_error_moves_to_inputs_that_count_little() -> None:
    torch.manual_seed(5)
    weight, importance = torch.randn(64, 256), torch.rand(256).square() + 1e-3
    weighted, plain = come_back(weight, importance) - weight, come_back(weight) - weight
    assert (weighted.square() * importance).sum() < 0.98 * (plain.square() * importance).sum()


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 9), threads=st.sampled_from([1, 2, 3]))
def test_bytes_do_not_depend_on_chunks_or_threads(rows: int, threads: int) -> None:
    torch.manual_seed(6)
    weight = torch.randn(36, 256)
    expected = quantize_nf4(weight, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        pieces = [quantize_nf4(chunk, 64) for chunk in weight.split(rows)]
    finally:
        torch.set_num_threads(before)
    for role, whole in expected.items():
        assert torch.equal(torch.cat([piece[role] for piece in pieces]), whole)


def test_table_value_comes_back_exactly() -> None:
    weight = torch.tensor(NF4_CODES).repeat(4).view(1, 64) * 0.5
    parts = quantize_nf4(weight, 64)
    assert torch.equal(restored(Scheme.NF4, parts, weight.shape, 64), weight)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_group_without_a_float16_maximum_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 64)
    weight[0, 5] = bad
    with pytest.raises(ConversionError, match="not finite"):
        quantize_rows(Scheme.NF4, weight, 64)
