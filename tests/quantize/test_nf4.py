from __future__ import annotations

import warnings

import pytest
import torch

from zse.errors import ConversionError
from zse.format.nf4 import NF4_CODES
from zse.quantize.nf4 import NF4, nearest_codes
from zse.quantize.packing import unpack_int4


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
    parts = NF4(group_size=64).quantize_blocks(weight.float())
    assert torch.equal(unpack_int4(parts["qweight"], 64), theirs)
    assert torch.equal(parts["absmax"].view(-1), state.absmax.half())


def test_table_value_comes_back_exactly() -> None:
    weight = torch.tensor(NF4_CODES).repeat(4).view(1, 64) * 0.5
    scheme = NF4(group_size=64)
    assert torch.equal(scheme.dequantize_blocks(scheme.quantize_blocks(weight)), weight)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_group_without_a_float16_maximum_is_an_error(bad: float) -> None:
    weight = torch.zeros(1, 64)
    weight[0, 5] = bad
    with pytest.raises(ConversionError, match="not finite"):
        NF4().quantize_blocks(weight)
