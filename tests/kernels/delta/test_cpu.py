"""Linear attention on a processor."""

from __future__ import annotations

import ctypes

import pytest
import torch
from native_operations import INSTRUCTIONS, native_norm, started_pool

from zse.kernels.delta.reference import DeltaParameters, delta
from zse.kernels.delta.shape import DeltaShape
from zse.kernels.native.codes import Kind, Register
from zse.kernels.native.structs import Delta, Operation, Rows, State, Step

TOLERANCE = 1e-5
SLOTS = 3
SHAPES = [
    DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=24, convolution_width=4),
    DeltaShape(num_key_heads=1, num_value_heads=1, key_dim=128, value_dim=128, convolution_width=4),
    DeltaShape(num_key_heads=1, num_value_heads=2, key_dim=5, value_dim=7, convolution_width=2),
]


class Layer:
    """A layer with random weights and the states of its slots."""

    def __init__(self, shape: DeltaShape) -> None:
        heads, taps = shape.num_value_heads, shape.convolution_width
        self.shape = shape
        self.parameters = DeltaParameters(
            convolution=torch.randn(shape.channels, taps) * 0.5,
            decay=torch.rand(heads) * 3 - 2,
            step_bias=torch.randn(heads),
            norm=torch.rand(shape.value_dim) + 0.5,
            epsilon=1e-6,
        )
        self.norm = native_norm(self.parameters.norm, 1e-6)
        self.native = Delta(
            num_key_heads=shape.num_key_heads,
            num_value_heads=heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            convolution_width=taps,
            convolution=self.parameters.convolution.data_ptr(),
            decay=self.parameters.decay.data_ptr(),
            step_bias=self.parameters.step_bias.data_ptr(),
            norm=ctypes.pointer(self.norm),
        )
        self.rings = torch.full((SLOTS, taps, shape.channels), float("nan"))
        self.matrices = torch.full((SLOTS, heads, shape.key_dim, shape.value_dim), float("nan"))
        self.expected = {
            slot: (
                torch.zeros(taps - 1, shape.channels),
                torch.zeros(heads, shape.key_dim, shape.value_dim),
            )
            for slot in range(SLOTS)
        }

    def check(
        self, instructions: str, chunks: list[tuple[int, int, int]], num_threads: int = 1
    ) -> None:
        """Compute chunks of (slot, first position, tokens), here and by the reference."""
        shape, total = self.shape, sum(count for _, _, count in chunks)
        inputs = torch.randn(total, shape.input_columns)
        gates = torch.randn(total, 2 * shape.num_value_heads)
        parts, rows, first = [], [], 0
        for slot, position, count in chunks:
            own = slice(first, first + count)
            found = delta(inputs[own], gates[own], self.parameters, shape, *self.expected[slot])
            parts.append(found)
            rows.append(Rows(first, count, position, slot, slot))
            first += count
        mixed = torch.full((total, shape.value_columns), float("nan"))
        states = {"rings": self.rings, "matrices": self.matrices}
        self.run(instructions, rows, (inputs, gates, mixed), states, num_threads)
        assert_close(mixed, torch.cat(parts))
        for slot, _, _ in chunks:
            assert_close(self.matrices[slot], self.expected[slot][1])

    def run(
        self,
        instructions: str,
        rows: list[Rows],
        values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        states: dict[str, torch.Tensor],
        num_threads: int = 2,
    ) -> None:
        """Compute rows of inputs, gates and outputs over states."""
        inputs, gates, mixed = values
        state = State(**{name: part.data_ptr() for name, part in states.items()})
        step = Step(rows=len(inputs), num_chunks=len(rows), chunks=(Rows * len(rows))(*rows))
        step.states = ctypes.pointer(state)
        registers = {
            Register.QKV: inputs, Register.DELTA_GATES: gates, Register.MIXED: mixed
        }  # fmt: skip
        for register, values in registers.items():
            step.registers[register] = values.data_ptr()
        common = {"input": Register.QKV, "delta": ctypes.pointer(self.native)}
        program = (Operation * 2)(
            Operation(kind=Kind.CONVOLVE, output=Register.QKV, **common),
            Operation(kind=Kind.DELTA, output=Register.MIXED, **common),
        )
        with started_pool(instructions, num_threads) as pool:
            pool.library.run(pool.handle, program, 2, step)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert not found.isnan().any()
    assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_of_several_sequences_equal_the_reference(
    shape: DeltaShape, instructions: str
) -> None:
    torch.manual_seed(5)
    layer = Layer(shape)
    layer.check(instructions, [(2, 0, 1), (0, 0, 9)], num_threads=2)
    layer.check(instructions, [(2, 1, 1), (1, 0, 2), (0, 9, 3)])
    layer.check(instructions, [(0, 12, 1), (2, 2, 1), (1, 2, 1)])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_slot_that_was_used_before_begins_empty(instructions: str) -> None:
    torch.manual_seed(6)
    layer = Layer(SHAPES[0])
    layer.check(instructions, [(1, 0, 6)])
    for part in layer.expected[1]:
        part.zero_()
    layer.check(instructions, [(1, 0, 2)])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_with_a_slot_each_leave_there_the_bits_of_rows_computed_one_after_the_other(
    shape: DeltaShape, instructions: str
) -> None:
    """Drafts: row i goes on with what row i - 1 left; another sequence stands beside them."""
    torch.manual_seed(8)
    count, start, slots = 3, 5, [2, 0, 3]
    layer = Layer(shape)
    before = {
        "rings": torch.randn(4, shape.convolution_width, shape.channels),
        "matrices": torch.randn(4, shape.num_value_heads, shape.key_dim, shape.value_dim),
    }
    inputs = torch.randn(count + 1, shape.input_columns)
    gates = torch.randn(count + 1, 2 * shape.num_value_heads)

    def run(chunks: list[Rows], states: dict[str, torch.Tensor], first: int, end: int):
        mixed = torch.full((end - first, shape.value_columns), float("nan"))
        own = inputs[first:end].clone()
        layer.run(instructions, chunks, (own, gates[first:end].clone(), mixed), states)
        return mixed

    alone = {name: part.clone() for name, part in before.items()}
    expected, left = [], []
    for row in range(count):
        expected.append(run([Rows(0, 1, start + row, 2, 2)], alone, row, row + 1))
        left.append({name: part[2].clone() for name, part in alone.items()})
    expected.append(run([Rows(0, 1, 9, 1, 1)], alone, count, count + 1))
    together = {name: part.clone() for name, part in before.items()}
    sources = [2, *slots[:-1]]
    chunks = [
        Rows(row, 1, start + row, slot, source)
        for row, (slot, source) in enumerate(zip(slots, sources, strict=True))
    ]
    chunks.append(Rows(count, 1, 9, 1, 1))
    assert torch.equal(run(chunks, together, 0, count + 1), torch.cat(expected))
    for slot, one in zip(slots, left, strict=True):
        assert torch.equal(together["rings"][slot], one["rings"])
        assert torch.equal(together["matrices"][slot], one["matrices"])
    assert torch.equal(together["matrices"][1], alone["matrices"][1])
