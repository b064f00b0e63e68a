"""Chosen experts on a processor: their products, and what they add up to for each row."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "linear"))

import pytest
import torch
from cpu_products import (
    QuantizedRows,
    aligned,
    make_native_matrix,
    make_values,
    native_matrix,
    quantized_rows,
)
from matrices import Matrix, relative_error
from native_operations import INSTRUCTIONS, started_pool

from zse.kernels.native.codes import Activation, Kind, Register, RowSet, Scoring
from zse.kernels.native.structs import Experts, Operation, Step

NUM_EXPERTS, CHOSEN, HIDDEN, WIDTH = 12, 3, 256, 384
SCHEMES = [
    *(("int4", group) for group in (128, 64, 32)),
    ("int3", 64),
    ("int2", 32),
    ("nf4", 128),
    ("mxfp4", 32),
    ("nl4_pairs", 32),
    ("int8", 0),
    ("bf16", 0),
    ("fp32", 0),
]


@dataclass
class Mixture:
    """Experts of one layer: stacked matrices, and biases."""

    up: Matrix
    down: Matrix
    up_bias: torch.Tensor
    down_bias: torch.Tensor
    quantizes: int

    def expected(self, values: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return float64 [rows, hidden] of exact arithmetic on ``values``."""
        weights, experts = logits.double().softmax(-1).sort(descending=True, stable=True)
        weights = weights[:, :CHOSEN] / weights[:, :CHOSEN].sum(-1, keepdim=True)
        up = self.up.int8_values.view(NUM_EXPERTS, 2 * WIDTH, HIDDEN)
        down = self.down.int8_values.view(NUM_EXPERTS, HIDDEN, WIDTH)
        up_bias = self.up_bias.double().view(NUM_EXPERTS, -1)
        down_bias = self.down_bias.double().view(NUM_EXPERTS, -1)
        output = torch.zeros(len(values), HIDDEN, dtype=torch.float64)
        for row in range(len(values)):
            for weight, expert in zip(weights[row], experts[row, :CHOSEN], strict=True):
                gate, ups = (up[expert] @ values[row].double() + up_bias[expert]).chunk(2)
                hidden = torch.nn.functional.silu(gate) * ups
                output[row] += weight * (down[expert] @ hidden + down_bias[expert])
        return output


def make_mixture(scheme: str, group: int) -> Mixture:
    generator = torch.Generator().manual_seed(5)
    return Mixture(
        up=make_native_matrix(scheme, NUM_EXPERTS * 2 * WIDTH, HIDDEN, group),
        down=make_native_matrix(scheme, NUM_EXPERTS * HIDDEN, WIDTH, group),
        up_bias=torch.randn(NUM_EXPERTS * 2 * WIDTH, generator=generator),
        down_bias=torch.randn(NUM_EXPERTS * HIDDEN, generator=generator),
        quantizes=0 if scheme in ("bf16", "fp32") else group or 128,
    )


def room(rows: int) -> dict[Register, torch.Tensor]:
    chosen = rows * CHOSEN
    return {
        Register.CHOICES: torch.zeros(rows, CHOSEN, 3, dtype=torch.int32),
        Register.RUNS: torch.zeros(chosen + 1, 3, dtype=torch.int32),
        Register.CHOSEN: torch.full((chosen, HIDDEN), float("nan")),
        Register.CHOSEN_JOINED: torch.full((chosen, 2 * WIDTH), float("nan")),
        Register.CHOSEN_HIDDEN: torch.full((chosen, WIDTH), float("nan")),
        Register.MIXTURE: torch.full((rows, HIDDEN), float("nan")),
    }


def operations_of(mixture: Mixture) -> list[Operation]:
    """Return what a layer does between its router's logits and the sum of its experts."""
    experts = ctypes.pointer(
        Experts(
            num_experts=NUM_EXPERTS,
            experts_per_token=CHOSEN,
            scoring=Scoring.SOFTMAX,
            normalizes=1,
            weight_scale=1.0,
            num_groups=1,
        )
    )
    up = ctypes.pointer(native_matrix(mixture.up, mixture.up_bias))
    down = ctypes.pointer(native_matrix(mixture.down, mixture.down_bias))
    quantizes = mixture.quantizes
    chosen, joined, hidden = Register.CHOSEN, Register.CHOSEN_JOINED, Register.CHOSEN_HIDDEN
    gather = Operation(kind=Kind.GATHER, input=Register.NORMED, output=chosen, width=HIDDEN)
    activate = Operation(kind=Kind.ACTIVATE, input=joined, output=hidden, width=2 * WIDTH)
    activate.activation, activate.is_gated = Activation.SILU, 1
    combine = Operation(kind=Kind.COMBINE, input=chosen, output=Register.MIXTURE, width=HIDDEN)
    listed = [
        Operation(kind=Kind.ROUTE),
        Operation(kind=Kind.SORT),
        gather,
        Operation(kind=Kind.EXPERTS, input=chosen, output=joined, matrix=up),
        activate,
        Operation(kind=Kind.EXPERTS, input=hidden, output=chosen, matrix=down),
        combine,
    ]
    for operation in listed:
        operation.experts, operation.quantizes = experts, quantizes
    activate.row_set = RowSet.CHOSEN
    return listed


def mixed(
    instructions: str,
    mixture: Mixture,
    values: torch.Tensor,
    logits: torch.Tensor,
    *,
    threads: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the experts add, [rows, hidden], and the values that they read."""
    rows = len(values)
    registers = {**room(rows), Register.NORMED: values, Register.ROUTER: logits.clone()}
    stride = max(HIDDEN, WIDTH)
    chosen = QuantizedRows(
        codes=aligned(rows * CHOSEN, stride, dtype=torch.int8),
        scales=aligned(rows * CHOSEN, stride // 32),
        sums=aligned(rows * CHOSEN, stride // 32),
        group=mixture.quantizes,
    )
    listed = operations_of(mixture)
    with started_pool(instructions, threads) as pool:
        quantized = quantized_rows(pool, values, mixture.quantizes or 128)
        step = Step(rows=rows, quantized=quantized.native(), chosen=chosen.native())
        for register, numbers in registers.items():
            step.registers[register] = numbers.data_ptr()
        pool.library.run(pool.handle, (Operation * len(listed))(*listed), len(listed), step)
    read = quantized.values(HIDDEN) if mixture.quantizes else values
    return registers[Register.MIXTURE], read


def random_logits(rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, NUM_EXPERTS, generator=generator) * 2


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rows", [1, 7, 90])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_a_row_gets_the_weighted_sum_of_its_experts(
    instructions: str, scheme: str, group: int, rows: int
) -> None:
    mixture = make_mixture(scheme, group)
    values, logits = make_values(rows, HIDDEN), random_logits(rows)
    found, read = mixed(instructions, mixture, values, logits, threads=2)
    # What stands between the matrices is rounded to eight bits, too.
    tolerance = 2e-2 if mixture.quantizes else 1e-5
    assert relative_error(found, mixture.expected(read, logits)) < tolerance


@pytest.mark.parametrize(("scheme", "group"), [("int4", 64), ("int8", 0), ("bf16", 0)])
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(scheme: str, group: int) -> None:
    mixture = make_mixture(scheme, group)
    values, logits = make_values(60, HIDDEN), random_logits(60)
    logits[:40] = logits[0]  # one expert has so many rows that they are multiplied in tiles
    for instructions in INSTRUCTIONS:
        found = []
        for first, threads in ((0, 3), (30, 1), (59, 2)):
            some = values[first:].contiguous()
            found.append(mixed(instructions, mixture, some, logits[first:], threads=threads)[0])
        assert torch.equal(found[0][30:], found[1])
        assert torch.equal(found[0][59:], found[2])


def test_rows_of_experts_that_nobody_chose_are_not_read() -> None:
    mixture = make_mixture("fp32", 0)
    used = [2, 5, 11]
    for matrix, rows in ((mixture.up, 2 * WIDTH), (mixture.down, HIDDEN)):
        experts = matrix.kept[0].view(NUM_EXPERTS, rows, -1)
        unused = [expert for expert in range(NUM_EXPERTS) if expert not in used]
        experts[unused] = float("nan")
    logits = torch.zeros(20, NUM_EXPERTS)
    logits[:, used] = 5.0
    found, _ = mixed(INSTRUCTIONS[0], mixture, make_values(20, HIDDEN), logits)
    assert found.isfinite().all()
