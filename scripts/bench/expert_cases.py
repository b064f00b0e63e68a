"""Experts, choices and activations on a GPU for ``kernel_experts.py``; needs torch with CUDA."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests" / "kernels" / "linear"):
    sys.path.insert(0, str(folder))

import torch  # noqa: E402
from matrices import Inputs, make_inputs, make_matrix  # noqa: E402

from zse.kernels.experts.weight import StackedWeight  # noqa: E402
from zse.kernels.layout import Quantized  # noqa: E402
from zse.kernels.norm.reference import dequantize, quantize  # noqa: E402
from zse.kernels.route.launch import Choice, Grouping  # noqa: E402

DISTINCT = 4
"""Experts with matrices of their own; the others are copies of them, in memory of their own."""


@dataclass
class Shape:
    """The experts of a layer of a model."""

    experts: int
    chosen: int
    shared: int
    hidden: int
    width: int
    scheme: str = "int4"
    group: int = 128

    @property
    def slots(self) -> int:
        return self.chosen + self.shared


SHAPES = {
    "qwen3-30b-a3b": Shape(experts=128, chosen=8, shared=0, hidden=2048, width=768),
    "qwen3.6-35b-a3b": Shape(experts=256, chosen=8, shared=1, hidden=2048, width=512),
    "gpt-oss-20b": Shape(
        experts=32, chosen=4, shared=0, hidden=2880, width=2880, scheme="mxfp4", group=32
    ),
}


@dataclass
class Stack:
    weight: StackedWeight
    exact: torch.Tensor
    """float64 [DISTINCT, rows, columns]; expert e has those of e % DISTINCT."""
    int8_values: torch.Tensor
    kept: tuple[torch.Tensor, ...]

    def matrix(self, expert: int, *, quantized: bool) -> torch.Tensor:
        return (self.int8_values if quantized else self.exact)[expert % DISTINCT]


def make_stack(shape: Shape, rows: int, columns: int) -> Stack:
    """Return the stacked matrices [rows, columns] of a layer, the shared expert's behind them."""
    few = make_matrix(shape.scheme, rows * DISTINCT, columns, shape.group, device="cuda")
    count = shape.experts + shape.shared
    times = -(-count // DISTINCT)
    codes, scales = (part.repeat(times, *[1] * (part.dim() - 1)) for part in few.kept)
    stack = replace(
        few.weight, rows=rows * shape.experts, weights=codes.data_ptr(), scales=scales.data_ptr()
    )
    end = rows * shape.experts
    shared = replace(
        stack, rows=rows, weights=codes[end:].data_ptr(), scales=scales[end:].data_ptr()
    )
    return Stack(
        weight=StackedWeight(
            stack=stack, experts=shape.experts, shared=shared if shape.shared else None
        ),
        exact=few.exact.view(DISTINCT, rows, columns),
        int8_values=few.int8_values.view(DISTINCT, rows, columns),
        kept=(codes, scales),
    )


@dataclass
class Chosen:
    """A random choice of experts, and its grouping."""

    experts: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor

    @property
    def choice(self) -> Choice:
        rows, slots = self.experts.shape
        return Choice(
            rows=rows, slots=slots, experts=self.experts.data_ptr(),
            weights=self.weights.data_ptr(),
        )  # fmt: skip

    @property
    def grouping(self) -> Grouping:
        return Grouping(
            pairs=self.experts.numel(), groups=self.starts.numel() - 1,
            order=self.order.data_ptr(), starts=self.starts.data_ptr(),
        )  # fmt: skip

    @property
    def distinct(self) -> int:
        """Experts that anyone chose."""
        return int(self.experts.unique().numel())


def make_chosen(shape: Shape, rows: int, seed: int) -> Chosen:
    generator = torch.Generator("cuda").manual_seed(seed)
    scores = torch.rand(rows, shape.experts, generator=generator, device="cuda")
    experts = scores.topk(shape.chosen).indices
    if shape.shared:
        last = torch.full((rows, 1), shape.experts, device="cuda")
        experts = torch.cat((experts, last), 1)
    pairs, groups = experts.flatten(), shape.experts + shape.shared
    counts = torch.bincount(pairs, minlength=groups)
    starts = torch.zeros(groups + 1, dtype=torch.int32, device="cuda")
    starts[1:] = counts.cumsum(0)
    return Chosen(
        experts=experts.int().contiguous(),
        weights=torch.rand(rows, shape.slots, generator=generator, device="cuda"),
        order=pairs.sort(stable=True).indices.int(),
        starts=starts,
    )


def inputs_of(rows: int, columns: int, *, quantized: bool) -> Inputs:
    """Return random activations; int8 rows may end in part of a group."""
    if not quantized or columns % 128 == 0:
        return make_inputs(rows, columns, quantized=quantized, device="cuda")
    wide = torch.zeros(rows, -(-columns // 128) * 128, device="cuda")
    wide[:, :columns] = torch.randn(rows, columns, device="cuda")
    codes, scales, sums = quantize(wide)
    exact = dequantize(codes, scales).double()[:, :columns]
    codes = codes[:, :columns].contiguous()
    activation = Quantized(
        rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )  # fmt: skip
    return Inputs(activation=activation, exact=exact, kept=(codes, scales, sums))
