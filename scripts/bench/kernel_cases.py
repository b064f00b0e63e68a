"""Shapes, matrices and timing on a GPU for ``kernels.py``; needs torch with CUDA."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests" / "kernels" / "linear"):
    sys.path.insert(0, str(folder))

from typing import TYPE_CHECKING  # noqa: E402

import torch  # noqa: E402
from gpu_timing import graph_us  # noqa: E402
from matrices import Matrix, make_inputs, make_matrix, relative_error  # noqa: E402

from zse.kernels.linear.launch import linear  # noqa: E402
from zse.kernels.linear.plan import SPLITS, LinearPlan, steps_of  # noqa: E402
from zse.kernels.linear.reference import linear as reference  # noqa: E402
from zse.kernels.linear.weight import LinearWeight  # noqa: E402

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.variant import Variant

# name: (columns K, rows N)
SHAPES = {
    "7b": {
        "qkv": (3584, 4608),
        "o": (3584, 3584),
        "gate_up": (3584, 37888),
        "down": (18944, 3584),
        "lm_head": (3584, 152064),
    },
    "32b": {
        "qkv": (5120, 7168),
        "o": (5120, 5120),
        "gate_up": (5120, 55296),
        "down": (27648, 5120),
    },
}
FLUSHED_BYTES = 300e6
"""Read between two uses of the same copy: several times the second-level cache."""


@dataclass
class Case:
    """A matrix in several copies, and activations for it."""

    matrix: Matrix
    weights: list[LinearWeight]
    kept: list[tuple[torch.Tensor, ...]]
    outputs: torch.Tensor


def make_case(scheme: str, group: int, columns: int, rows: int) -> Case:
    matrix = make_matrix(scheme, rows, columns, group, device="cuda")
    copies = max(2, min(40, round(FLUSHED_BYTES / matrix.weight.size_bytes)))
    kept = [tuple(part.clone() for part in matrix.kept) for _ in range(copies)]
    weights = [
        LinearWeight(
            scheme=scheme,
            rows=rows,
            columns=columns,
            group_size=group,
            weights=codes.data_ptr(),
            scales=scales.data_ptr() if scales.numel() else 0,
        )
        for codes, scales in kept
    ]
    outputs = torch.empty(max(16 * 8, 256) * rows, device="cuda")
    return Case(matrix=matrix, weights=weights, kept=kept, outputs=outputs)


def is_quantized(variant: Variant) -> bool:
    return any(argument.name == "codes" for argument in variant.arguments)


def error_of(launcher: Launcher, case: Case, variant: Variant, rows: int, splits: int) -> float:
    """Return the relative error of one product."""
    quantized = is_quantized(variant)
    inputs = make_inputs(rows, case.matrix.weight.columns, quantized=quantized, device="cuda")
    plan = LinearPlan(variant=variant, splits=splits, rows=rows, columns=case.matrix.weight.rows)
    out = case.outputs[: splits * rows * case.matrix.weight.rows].view(splits, rows, -1)
    out.fill_(float("nan"))
    linear(launcher, case.matrix.weight, inputs.activation, out.data_ptr(), plan)
    matrix = case.matrix.int8_values if quantized else case.matrix.exact
    return relative_error(out.double().sum(0), reference(inputs.exact, matrix))


def time_plan(launcher: Launcher, case: Case, plan: LinearPlan) -> float:
    """Return microseconds of one product, the matrix not in the cache."""
    inputs = make_inputs(
        plan.rows, case.matrix.weight.columns, quantized=is_quantized(plan.variant), device="cuda"
    )
    address = case.outputs.data_ptr()
    return graph_us(
        [
            lambda weight=weight: linear(launcher, weight, inputs.activation, address, plan)
            for weight in case.weights
        ]
    )


def splits_for(variant: Variant, case: Case, rows: int) -> list[int]:
    steps = steps_of(variant, case.matrix.weight)
    room = case.outputs.numel() // (rows * case.matrix.weight.rows)
    return [s for s in SPLITS if s == 1 or (s <= room and s * 2 <= steps)]
