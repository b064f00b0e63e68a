"""What a plan counts with is what the conversion then loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from zse.format.as_torch import dequantize
from zse.format.schemes import Scheme
from zse.format.spec import TensorEntry
from zse.quantize.calibrate.feedback import shrunk
from zse.quantize.calibrate.moments import Moments
from zse.quantize.calibrate.rounding import Rounding
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.mixed.sensitivity import options_of
from zse.quantize.scheme import quantize_rows
from zse.quantize.source_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.weights import WeightSpec
    from zse.quantize.mixed.plan import Option


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    """Return [tokens, K] whose columns have much in common, so that feedback is worth much."""
    torch.manual_seed(0)
    return torch.randn(4096, 12) @ torch.randn(12, 128) + 0.2 * torch.randn(4096, 128)


def measured(
    checkpoint: Checkpoint, weight: WeightSpec, inputs: torch.Tensor
) -> dict[tuple[Scheme, int], Option]:
    layer = checkpoint.spec.layers[0]
    found = options_of(checkpoint, weight, layer, [moments_of(inputs)])
    return {(one.planned.scheme, one.planned.group_size): one for one in found}


def moments_of(inputs: torch.Tensor) -> Moments:
    moments = Moments(inputs.shape[1], is_full=True)
    moments.add(inputs)
    return moments


def lost_share(rows: torch.Tensor, found: torch.Tensor, inputs: torch.Tensor) -> float:
    products = shrunk(inputs.t() @ inputs / inputs.shape[0], inputs.shape[0])
    lost, kept = found - rows, rows
    return float(((lost @ products) * lost).sum() / ((kept @ products) * kept).sum())


def test_a_plan_counts_with_what_feedback_leaves(llama_folder: Path, inputs: torch.Tensor) -> None:
    with Checkpoint(llama_folder) as checkpoint:
        weight = checkpoint.spec.layers[0].mlp.up.weight
        rows = torch.cat(
            [read_rows(checkpoint, weight, one, 0, one.rows).float() for one in weight.pieces()]
        )
        options = measured(checkpoint, weight, inputs)
    for scheme, size in ((Scheme.INT2, 32), (Scheme.INT3, 64), (Scheme.INT4, 128)):
        option = options[scheme, size]
        entry = TensorEntry(
            name="", scheme=scheme, shape=tuple(rows.shape), group_size=size, parts=()
        )
        rounding = Rounding([moments_of(inputs)])
        done = dequantize(entry, rounding.quantize(option.planned, rows, 0))
        plain = dequantize(entry, quantize_rows(scheme, rows, size, moments_of(inputs).squares()))
        assert option.error == pytest.approx(lost_share(rows, done, inputs), rel=0.25)
        assert option.error < 0.8 * lost_share(rows, plain, inputs)


def test_errors_of_queries_and_keys_count_more(llama_folder: Path, inputs: torch.Tensor) -> None:
    with Checkpoint(llama_folder) as checkpoint:
        layer = checkpoint.spec.layers[0]
        attention = measured(checkpoint, layer.mixer.qkv.weight, inputs)
        others = measured(checkpoint, layer.mlp.up.weight, inputs)
    for form in ((Scheme.INT2, 32), (Scheme.INT4, 128)):  # random matrices lose alike
        assert attention[form].error == pytest.approx(2.5 * others[form].error, rel=0.3)
