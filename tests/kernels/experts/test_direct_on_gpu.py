"""Experts' weights that go to tensor cores directly, on the GPU at hand: what the twins compute."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "linear"))

import torch
from interpreted import InterpretedLauncher
from kernels_on_gpu import KernelsOnGpu, kernels_on_gpu
from matrices import make_matrix

from zse.kernels.experts.launch import direct_products
from zse.kernels.experts.variants import (
    DIRECT_FORMATS,
    DIRECT_TILES,
    UNSORTED_PAIRS,
    direct_form,
    unsorted_form,
)
from zse.kernels.experts.weight import StackedWeight
from zse.kernels.layout import Quantized
from zse.kernels.norm.reference import quantize
from zse.kernels.route.launch import Choice, Grouping
from zse.kernels.route.reference import group_by_expert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.kernels.launcher import Launcher
    from zse.kernels.variant import Variant

pytestmark = pytest.mark.gpu

EXPERTS, SLOTS, WIDTH = 5, 3, 192
COLUMNS = {"int4": 768, "mxfp4": 704}
"""Blocks of 128 columns that no number of blocks on their way divides; or a half behind them."""


@pytest.fixture(scope="module")
def device() -> Iterator[KernelsOnGpu]:
    with kernels_on_gpu() as opened:
        yield opened


@dataclass
class Case:
    """Operands of a launch, as tensors of the host."""

    scheme: str
    group: int
    rows: int

    def __post_init__(self) -> None:
        torch.manual_seed(self.rows)
        self.matrix = make_matrix(
            self.scheme, 2 * WIDTH * (EXPERTS + 1), COLUMNS[self.scheme], self.group
        )
        self.bias = torch.randn(EXPERTS, 2 * WIDTH)
        chosen = torch.stack([torch.randperm(EXPERTS)[: SLOTS - 1] for _ in range(self.rows)])
        self.chosen = torch.cat((chosen, torch.full((self.rows, 1), EXPERTS)), 1).int()
        self.weights = torch.rand(self.rows, SLOTS)
        self.order, self.starts = group_by_expert(self.chosen, EXPERTS + 1)

    def run(
        self, launcher: Launcher, put: Callable[[torch.Tensor], int], form: Variant, out: int,
        *, is_down: bool,
    ) -> None:  # fmt: skip
        """Launch a form; ``put`` says where a copy of a tensor lies."""
        codes, scales = self.matrix.kept
        stack = replace(
            self.matrix.weight, rows=2 * WIDTH * EXPERTS, weights=put(codes), scales=put(scales)
        )
        behind = {
            "weights": stack.weights + codes[: stack.rows].nbytes,
            "scales": stack.scales + scales[: stack.rows].nbytes,
        }
        shared = replace(stack, rows=2 * WIDTH, **behind)
        weight = StackedWeight(stack=stack, experts=EXPERTS, bias=put(self.bias), shared=shared)
        pairs = self.rows * SLOTS
        choice = Choice(
            rows=self.rows, slots=SLOTS, experts=put(self.chosen), weights=put(self.weights)
        )
        grouping = Grouping(
            pairs=pairs, groups=EXPERTS + 1, order=put(self.order), starts=put(self.starts)
        )
        inputs = self.inputs(put, pairs if is_down else self.rows)
        direct_products(launcher, weight, inputs, choice, grouping, out, form, is_down=is_down)

    def inputs(self, put: Callable[[torch.Tensor], int], rows: int) -> Quantized:
        columns = COLUMNS[self.scheme]
        wide = torch.zeros(rows, -(-columns // 128) * 128)
        wide[:, :columns] = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
        codes, scales, sums = quantize(wide)
        return Quantized(
            rows=rows, columns=columns, codes=put(codes[:, :columns].contiguous()),
            scales=put(scales), sums=put(sums),
        )  # fmt: skip


def forms_of(scheme: str) -> list[Variant]:
    return [*(direct_form(scheme, tile) for tile in DIRECT_TILES), unsorted_form(scheme)]


def both(
    device: KernelsOnGpu, case: Case, form: Variant, size: int, *, is_down: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``size`` bytes that the GPU and that the twin make."""
    kept: list[torch.Tensor] = []

    def put(tensor: torch.Tensor) -> int:
        kept.append(tensor.contiguous())
        return kept[-1].data_ptr()

    expected = torch.zeros(size, dtype=torch.uint8)
    case.run(InterpretedLauncher(), put, form, expected.data_ptr(), is_down=is_down)
    room = device.room(size)
    case.run(device.launcher, device.send, form, room.address, is_down=is_down)
    return device.read(room.address, torch.uint8, size), expected


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize(("scheme", "group"), DIRECT_FORMATS)
def test_products_are_the_twins_in_the_same_bits_by_every_form(
    device: KernelsOnGpu, scheme: str, group: int, rows: int, is_down: bool
) -> None:
    case, size = Case(scheme, group, rows), rows * SLOTS * 2 * WIDTH * 4
    results = []
    for form in forms_of(scheme):
        if dict(form.constants)["PAIRS"] and rows * SLOTS > UNSORTED_PAIRS:
            continue
        found, expected = both(device, case, form, size, is_down=is_down)
        error = found.view(torch.float32) - expected.view(torch.float32)
        assert error.norm() <= 1e-5 * expected.view(torch.float32).norm(), form.key
        results.append(found)
    assert all(torch.equal(each, results[0]) for each in results)
