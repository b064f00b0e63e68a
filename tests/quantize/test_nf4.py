from __future__ import annotations

import warnings

import pytest
import torch
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.as_torch import unpack_nibbles
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_equal_those_of_bitsandbytes(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(2)
    weight = (torch.randn(64, 256) * 0.02).to(dtype)
    weight[0, :64] = 0
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    flat = packed.view(-1)
    theirs = torch.stack((flat >> 4, flat & 15), dim=1).view(64, 256)
    parts = quantize_nf4(weight.float(), 64)
    assert torch.equal(unpack_nibbles(parts["qweight"], 64).view(64, 256), theirs)
    assert torch.equal(parts["absmax"].view(-1), state.absmax.half())


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
