"""Moments are means over all inputs, however these come."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from zse.quantize.calibrate import moments as module
from zse.quantize.calibrate.moments import Moments, ranges_of


def test_products_are_those_of_all_inputs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STRIP", 7)
    inputs = torch.randn(90, 20, generator=torch.Generator().manual_seed(1))
    moments = Moments(20, is_full=True)
    moments.add(inputs[:33])
    moments.add(inputs[33:])
    (products,) = moments.products()
    assert moments.count == 90
    assert torch.allclose(products, inputs.t() @ inputs / 90, atol=1e-5)
    assert torch.allclose(moments.squares(), inputs.square().mean(0), atol=1e-5)


def test_an_input_that_never_comes_still_counts_a_little() -> None:
    moments = Moments(3, is_full=False)
    moments.add(torch.tensor([[1.0, 0.0, 2.0]]))
    assert (moments.squares() > 0).all()
    assert moments.products() == []


@pytest.mark.parametrize("columns", [64, 576, 4608, 4864, 8960, 18944])
def test_ranges_are_whole_groups_and_cover_every_column_once(columns: int) -> None:
    found = ranges_of(columns)
    assert found[0][0] == 0
    assert found[-1][1] == columns
    assert all(end == start for (_, end), (start, _) in pairwise(found))
    assert all(start % 128 == 0 and 0 < end - start <= 4608 for start, end in found)
