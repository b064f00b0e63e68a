"""What adapters add to products, on a processor: equal to the reference, row by row."""

from __future__ import annotations

import ctypes
from array import array

import pytest
import torch
from native_operations import INSTRUCTIONS, run_operation, started_pool

from zse.backends.adapters import AdaptedMatrix, AdapterWeights, LowRank, PlainMatrix
from zse.backends.cpu.adapters import NativeAdapter
from zse.format.schemes import Scheme
from zse.kernels.low_rank.reference import add_low_rank
from zse.kernels.native.codes import Kind, Register
from zse.kernels.native.library import load
from zse.kernels.native.structs import Matrix, Operation, Step
from zse.models.layer_spec import LinearSpec
from zse.models.weights import WeightSpec


def matrix_named(name: str, rows: int = 1 << 20) -> AdaptedMatrix:
    weight = WeightSpec(name=name, shape=(rows, 1), kind="linear", sources=())
    return AdaptedMatrix(linear=LinearSpec(weight=weight))


MATRICES = [matrix_named("other"), matrix_named("some")]
STRIDE = 40


def plain(tensor: torch.Tensor) -> PlainMatrix:
    rows, columns = tensor.shape
    return PlainMatrix(
        data=tensor.numpy().tobytes(), scheme=Scheme.FP32, rows=rows, columns=columns
    )


def random_parts(
    columns: int, rows: int, ranks: list[int], generator: torch.Generator
) -> tuple[LowRank, ...]:
    """Return adapters of as many rows each, which lie one behind the other with a gap between."""
    return tuple(
        LowRank(
            first_row=place * (rows + 3),
            scale=0.5 + place,
            down=plain(torch.randn(rank, columns, generator=generator)),
            up=plain(torch.randn(rows, rank, generator=generator)),
        )
        for place, rank in enumerate(ranks)
    )


def tensor_of(matrix: PlainMatrix) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(matrix.data), dtype=torch.float32)
    return flat.view(matrix.rows, matrix.columns)


def added(
    instructions: str,
    inputs: torch.Tensor,
    outputs: torch.Tensor,
    adapters: list[NativeAdapter | None],
    *,
    scale: float = 1.0,
    num_threads: int = 1,
) -> torch.Tensor:
    """Return the outputs with what the rows' adapters add to the matrix ``some``."""
    found, reduced = outputs.clone(), torch.full((len(inputs), STRIDE), float("nan"))
    matrix = Matrix(rows=outputs.shape[1], columns=inputs.shape[1])
    addresses = array("Q", [0 if one is None else one.address for one in adapters])
    step = Step(rows=len(inputs), adapters=addresses.buffer_info()[0])
    registers = {
        Register.NORMED: inputs,
        Register.LOW_RANK: reduced,
        Register.QKV: found,
    }
    operations = [
        (Kind.ADAPT_DOWN, Register.NORMED, Register.LOW_RANK, 1.0),
        (Kind.ADAPT_UP, Register.LOW_RANK, Register.QKV, scale),
    ]
    with started_pool(instructions, num_threads) as pool:
        for kind, source, output, factor in operations:
            operation = Operation(
                kind=kind, input=source, output=output, layer=1, width=STRIDE, scale=factor
            )
            operation.matrix = ctypes.pointer(matrix)
            run_operation(pool, operation, step, registers)
    return found


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize(
    ("columns", "rows", "ranks"), [(64, 32, [4]), (37, 11, [1, 3]), (130, 2100, [16, 5, 9])]
)
@pytest.mark.parametrize("num_rows", [1, 33])
def test_rows_get_what_their_adapter_adds(
    instructions: str, columns: int, rows: int, ranks: list[int], num_rows: int
) -> None:
    generator = torch.Generator().manual_seed(columns)
    both = [random_parts(columns, rows, ranks, generator) for _ in range(2)]
    adapters = [
        NativeAdapter(AdapterWeights(name="a", parts={"some": parts}), MATRICES, load(instructions))
        for parts in both
    ]
    inputs = torch.randn(num_rows, columns, generator=generator)
    outputs = torch.randn(num_rows, len(ranks) * (rows + 3), generator=generator)
    choice = [(row + 1) % 3 - 1 for row in range(num_rows)]  # of 0, 1 and none
    found = added(
        instructions,
        inputs,
        outputs,
        [None if one < 0 else adapters[one] for one in choice],
        scale=0.3,
    )
    expected = outputs.clone()
    for row, one in enumerate(choice):
        for part in both[one] if one >= 0 else ():
            down, up = tensor_of(part.down), tensor_of(part.up)
            add_low_rank(
                expected[row : row + 1], inputs[row : row + 1], down, up,
                first=part.first_row, scale=0.3 * part.scale,
            )  # fmt: skip
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.abs().max())
    unchanged = [row for row, one in enumerate(choice) if one < 0]
    assert torch.equal(found[unchanged], outputs[unchanged])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_row_has_the_same_bits_in_any_step_and_on_any_number_of_threads(
    instructions: str,
) -> None:
    generator = torch.Generator().manual_seed(5)
    parts = random_parts(96, 2500, [7], generator)
    weights = AdapterWeights(name="a", parts={"some": parts})
    adapter = NativeAdapter(weights, MATRICES, load(instructions))
    inputs = torch.randn(40, 96, generator=generator)
    outputs = torch.randn(40, 2503, generator=generator)
    together = added(instructions, inputs, outputs, [adapter] * 40, num_threads=2)
    for row in (0, 17, 39):
        one = slice(row, row + 1)
        alone = added(instructions, inputs[one].clone(), outputs[one].clone(), [adapter])
        assert torch.equal(alone, together[one])


def test_a_matrix_that_an_adapter_does_not_have_stays_as_it_is() -> None:
    generator = torch.Generator().manual_seed(6)
    parts = {"other": random_parts(64, 32, [4], generator)}
    adapter = NativeAdapter(AdapterWeights(name="a", parts=parts), MATRICES, load())
    outputs = torch.randn(2, 35, generator=generator)
    inputs = torch.randn(2, 64, generator=generator)
    assert torch.equal(added(INSTRUCTIONS[0], inputs, outputs, [adapter] * 2), outputs)
