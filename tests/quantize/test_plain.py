from __future__ import annotations

import pytest
import torch

from zse.errors import ConversionError
from zse.format.spec import Scheme
from zse.quantize.plain import Plain


def test_stored_type_comes_back_bit_for_bit() -> None:
    weight = torch.randn(4, 6).to(torch.bfloat16)
    parts = Plain(scheme=Scheme.BF16).quantize_blocks(weight)
    assert torch.equal(parts["data"], weight)
    assert torch.equal(Plain(scheme=Scheme.BF16).dequantize_blocks(parts), weight.float())


def test_value_above_the_range_of_float16_is_an_error() -> None:
    with pytest.raises(ConversionError) as caught:
        Plain(scheme=Scheme.FP16).quantize_blocks(torch.tensor([1e5]))
    assert "bf16" in caught.value.hint
