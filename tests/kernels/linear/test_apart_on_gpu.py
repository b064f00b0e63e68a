"""Products whose warps fetch and multiply apart equal torch's, on the GPU at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from kernels_on_gpu import KernelsOnGpu, kernels_on_gpu

from zse.kernels.layout import Quantized, Turned
from zse.kernels.linear.launch import linear
from zse.kernels.linear.launch_8bit import (
    linear_8bit_alike,
    linear_8bit_split,
    splits_of_turned,
)
from zse.kernels.linear.plan import plan_linear
from zse.kernels.linear.weight import LinearWeight

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[KernelsOnGpu]:
    with kernels_on_gpu() as opened:
        yield opened


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def codes_and_scales(rows: int, columns: int, scales: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    return codes, torch.rand(rows, scales) + 0.5


@pytest.mark.parametrize("columns", [1536, 8192])
@pytest.mark.parametrize("tokens", [100, 129, 256])
def test_splits_of_turned_rows_add_up_to_the_product(
    device: KernelsOnGpu, tokens: int, columns: int
) -> None:
    rows = 784
    (values, token_scales), (weights, row_scales) = (
        codes_and_scales(count, columns) for count in (tokens, rows)
    )
    inputs, kept = (
        Turned(
            rows=len(codes), columns=columns, codes=device.send(codes), scales=device.send(scales)
        )
        for codes, scales in ((values, token_scales), (weights, row_scales))
    )
    splits = splits_of_turned(rows, columns, tokens, device.launcher.device)
    assert splits > 1
    room = device.room(splits * tokens * rows * 4).address
    matrix = LinearWeight(scheme="int8", rows=rows, columns=columns, weights=0)
    linear_8bit_split(device.launcher, matrix, inputs, room, "fp32", kept=kept, splits=splits)
    found = device.read(room, torch.float32, splits, tokens, rows).sum(0)
    wanted = (values.float() @ weights.float().T) * token_scales * row_scales.T
    assert relative_error(found, wanted) <= 1e-5


@pytest.mark.parametrize(("rows", "columns"), [(784, 1536), (3584, 3584), (1024, 8192)])
def test_a_token_has_the_same_bits_among_any_number_of_tokens(
    device: KernelsOnGpu, rows: int, columns: int
) -> None:
    (values, token_scales), (weights, row_scales) = (
        codes_and_scales(count, columns) for count in (2500, rows)
    )
    codes_at, scales_at = device.send(values), device.send(token_scales)
    kept = Turned(
        rows=rows, columns=columns, codes=device.send(weights), scales=device.send(row_scales)
    )
    matrix = LinearWeight(scheme="int8", rows=rows, columns=columns, weights=0)
    splits = splits_of_turned(rows, columns, 128, device.launcher.device)
    found = {}
    for tokens in (1, 7, 64, 65, 128, 129, 256, 600, 2500):
        inputs = Turned(rows=tokens, columns=columns, codes=codes_at, scales=scales_at)
        room = device.room(splits * tokens * rows * 4).address
        linear_8bit_alike(device.launcher, matrix, inputs, room, "fp32", kept=kept, splits=splits)
        found[tokens] = device.read(room, torch.float32, splits, tokens, rows)
    for tokens, sums in found.items():
        assert sums.equal(found[2500][:, :tokens]), tokens


@pytest.mark.parametrize("rows", [65, 128, 200])
def test_a_head_of_many_rows_leaves_the_product(device: KernelsOnGpu, rows: int) -> None:
    columns, blocks = 384, 3
    height = 256 * 2 * device.launcher.device.multiprocessors - 16
    values, scales = codes_and_scales(rows, columns, blocks)
    weights, row_scales = codes_and_scales(height, columns)
    head = LinearWeight(
        scheme="int8", rows=height, columns=columns,
        weights=device.send(weights), scales=device.send(row_scales),
    )  # fmt: skip
    inputs = Quantized(
        rows=rows, columns=columns, codes=device.send(values), scales=device.send(scales), sums=0
    )
    plan = plan_linear(head, rows, quantized=True, device=device.launcher.device, max_splits=1)
    room = device.room(plan.output_bytes).address
    linear(device.launcher, head, inputs, room, plan)
    found = device.read(room, torch.float32, rows, height)
    scaled = values.float().view(rows, blocks, -1) * scales[:, :, None]
    wanted = scaled.flatten(1) @ weights.float().T * row_scales.T
    assert relative_error(found, wanted) <= 1e-5
