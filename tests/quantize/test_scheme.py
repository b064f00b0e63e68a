from __future__ import annotations

import pytest
import torch
from restored_rows import restored

from zse.errors import ConversionError
from zse.format.schemes import Scheme
from zse.quantize.scheme import quantize_rows


def test_stored_type_comes_back_bit_for_bit() -> None:
    weight = torch.randn(4, 6).to(torch.bfloat16)
    parts = quantize_rows(Scheme.BF16, weight)
    assert torch.equal(parts["data"], weight)
    assert torch.equal(restored(Scheme.BF16, parts, weight.shape), weight.float())


def test_value_above_the_range_of_float16_is_an_error() -> None:
    with pytest.raises(ConversionError) as caught:
        quantize_rows(Scheme.FP16, torch.tensor([1e5]))
    assert "bf16" in caught.value.hint
