"""The kernels of linear attention equal their reference, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.delta.launch import (
    DeltaRuns,
    DeltaStates,
    DeltaVectors,
    delta_decode,
    delta_prefill,
    prefill_workspace_bytes,
)
from zse.kernels.delta.reference import TOLERANCE, DeltaParameters, delta
from zse.kernels.delta.shape import DeltaShape
from zse.kernels.delta.variants import check_delta
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm.reference import dequantize

SLOTS = 4


class Layer:
    """A layer with random weights, the states of its slots, and the same as the reference has."""

    is_whole = False

    def __init__(self, head_dim: int = 64, key_heads: int = 1, value_heads: int = 2) -> None:
        torch.manual_seed(head_dim + value_heads)
        self.shape = DeltaShape(
            num_key_heads=key_heads,
            num_value_heads=value_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            convolution_width=4,
        )
        self.parameters = DeltaParameters(
            convolution=torch.randn(self.shape.channels, 4) * 0.5,
            decay=torch.rand(value_heads) * 3 - 2,
            step_bias=torch.randn(value_heads),
            norm=torch.rand(head_dim) + 0.5,
            epsilon=1e-6,
        )
        self.rings = torch.full((SLOTS, 4, self.shape.channels), float("nan"))
        self.states = torch.full((SLOTS, value_heads, head_dim, head_dim), float("nan"))
        self.histories = {slot: torch.zeros(3, self.shape.channels) for slot in range(SLOTS)}
        self.expected = {slot: torch.zeros_like(self.states[0]) for slot in range(SLOTS)}
        convolution, decay, step_bias, norm, epsilon = self.parameters
        self.vectors = DeltaVectors(
            convolution=convolution.data_ptr(),
            decay=decay.data_ptr(),
            step_bias=step_bias.data_ptr(),
            norm=norm.data_ptr(),
            epsilon=epsilon,
        )
        self.places = DeltaStates(rings=self.rings.data_ptr(), matrices=self.states.data_ptr())

    def grow(self, num_slots: int) -> None:
        """Have so many slots, with states as some tokens leave them, and rows of one summand."""
        self.is_whole = True
        self.rings = torch.randn(num_slots, *self.rings.shape[1:])
        self.states = torch.randn(num_slots, *self.states.shape[1:])
        self.places = DeltaStates(rings=self.rings.data_ptr(), matrices=self.states.data_ptr())

    def summands(self, values: torch.Tensor) -> torch.Tensor:
        return values[None] if self.is_whole else split(values)

    def random_rows(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        heads = self.shape.num_value_heads
        return torch.randn(rows, self.shape.input_columns), torch.randn(rows, 2 * heads)

    def reference(self, slot: int, inputs: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        history, state = self.histories[slot], self.expected[slot]
        return delta(inputs, gates, self.parameters, self.shape, history, state)

    def check_states(self, slots: list[int]) -> None:
        for slot in slots:
            assert_close(self.states[slot], self.expected[slot])

    def decode(
        self,
        rows: tuple[torch.Tensor, torch.Tensor],
        positions: list[int],
        slots: list[int],
        runs: list[int] | None = None,
    ) -> torch.Tensor:
        inputs, gates = (self.summands(part) for part in rows)
        output = torch.zeros(len(slots), self.shape.value_columns, dtype=torch.bfloat16)
        places = torch.tensor([positions, slots, runs or slots], dtype=torch.int32)
        padded = torch.zeros(3, 4 * len(slots), dtype=torch.int32)
        padded[:, : len(slots)] = places
        delta_decode(
            InterpretedLauncher(),
            self.shape,
            partials(inputs),
            partials(gates),
            self.vectors,
            self.places,
            Plain(rows=len(slots), columns=output.shape[1], values=output.data_ptr()),
            positions_address=padded[0].data_ptr(),
            slots_address=padded[1].data_ptr(),
            runs_address=padded[2].data_ptr() if runs else 0,
        )
        return output.float()

    def prefill(
        self,
        rows: tuple[torch.Tensor, torch.Tensor],
        lengths: list[int],
        positions: list[int],
        slots: list[int],
    ) -> torch.Tensor:
        inputs, gates = (split(part) for part in rows)
        count = inputs.shape[1]
        output = torch.zeros(count, self.shape.value_columns, dtype=torch.bfloat16)
        workspace = torch.zeros(prefill_workspace_bytes(count, self.shape), dtype=torch.uint8)
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        numbers = torch.zeros(4, 16, dtype=torch.int32)
        numbers[:, : len(lengths)] = torch.tensor([starts, lengths, positions, slots])
        places = [line.data_ptr() for line in numbers]
        delta_prefill(
            InterpretedLauncher(),
            self.shape,
            partials(inputs),
            partials(gates),
            self.vectors,
            self.places,
            DeltaRuns(
                count=len(lengths),
                longest=max(lengths),
                first_rows=places[0],
                num_rows=places[1],
                first_positions=places[2],
                slots=places[3],
            ),
            workspace_address=workspace.data_ptr(),
            outputs_address=output.data_ptr(),
        )
        return output.float()


def split(values: torch.Tensor) -> torch.Tensor:
    """Return two summands of some values."""
    part = torch.randn_like(values)
    return torch.stack((part, values - part))


def partials(summands: torch.Tensor) -> Partials:
    splits, rows, columns = summands.shape
    return Partials(rows=rows, columns=columns, splits=splits, values=summands.data_ptr())


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert not found.isnan().any()
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


@pytest.mark.parametrize("head_dim", [64, 128])
def test_decoded_tokens_equal_the_reference(head_dim: int) -> None:
    layer = Layer(head_dim)
    for position in range(5):
        rows = layer.random_rows(2)
        found = layer.decode(rows, [position, position], [2, 0])
        for row, slot in enumerate((2, 0)):
            expected = layer.reference(slot, rows[0][row : row + 1], rows[1][row : row + 1])
            assert_close(found[row : row + 1], expected)
    layer.check_states([2, 0])
    assert layer.states[[1, 3]].isnan().all()


@pytest.mark.parametrize("start", [0, 9])
def test_drafts_leave_the_bits_of_tokens_one_after_the_other_each_in_its_slot(start: int) -> None:
    """Five rows of one sequence, and one of another beside them."""
    layer, slots = Layer(key_heads=2, value_heads=4), [2, 0, 3, 4, 5]
    layer.grow(num_slots=7)
    layer.decode(layer.random_rows(1), [6], [1])
    before = layer.rings.clone(), layer.states.clone()
    rows = layer.random_rows(6)
    found = layer.decode(rows, [*range(start, start + 5), 7], [*slots, 1], [5, 0, 0, 0, 0, 1])
    left = layer.rings.clone(), layer.states.clone()
    layer.rings.copy_(before[0])
    layer.states.copy_(before[1])
    for row, slot in enumerate([*slots, 1]):
        one = tuple(part[row : row + 1] for part in rows)
        own = 1 if slot == 1 else slots[0]
        position = 7 if slot == 1 else start + row
        assert torch.equal(layer.decode(one, [position], [own])[0], found[row])
        assert torch.equal(left[1][slot], layer.states[own])
        for past in range(min(3, position + 1)):
            line = (position - past) % 4
            assert torch.equal(left[0][slot, line], layer.rings[own, line])
    assert torch.equal(left[1][6], before[1][6])


def test_decoded_heads_are_written_as_int8() -> None:
    layer = Layer(128)
    inputs, gates = layer.random_rows(1)
    columns = layer.shape.value_columns
    codes = torch.zeros(1, columns, dtype=torch.int8)
    scales, sums = torch.zeros(1, columns // 128), torch.zeros(1, columns // 128)
    place = torch.zeros(4, dtype=torch.int32)
    delta_decode(
        InterpretedLauncher(),
        layer.shape,
        partials(inputs[None]),
        partials(gates[None]),
        layer.vectors,
        layer.places,
        Quantized(
            rows=1,
            columns=columns,
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        ),
        positions_address=place.data_ptr(),
        slots_address=place.data_ptr(),
    )
    assert_close(dequantize(codes, scales), layer.reference(0, inputs, gates))
    own_sums = scales * codes.float().unflatten(-1, (-1, 128)).sum(-1)
    torch.testing.assert_close(sums, own_sums, rtol=1e-5, atol=1e-6)


def test_runs_of_several_sequences_equal_the_reference() -> None:
    layer = Layer()
    lengths, slots = [66, 2], [3, 0]
    rows = layer.random_rows(sum(lengths))
    found = layer.prefill(rows, lengths, [0, 0], slots)
    parts = zip(*(part.split(lengths) for part in rows), strict=True)
    expected = [layer.reference(slot, *part) for slot, part in zip(slots, parts, strict=True)]
    assert_close(found, torch.cat(expected))
    layer.check_states(slots)


def test_a_state_is_carried_from_run_to_run_and_into_decode() -> None:
    layer = Layer(value_heads=1)
    position = 0
    for length in (2, 65, 1):
        rows = layer.random_rows(length)
        found = layer.prefill(rows, [length], [position], [1])
        assert_close(found, layer.reference(1, *rows))
        position += length
    rows = layer.random_rows(1)
    assert_close(layer.decode(rows, [position], [1]), layer.reference(1, *rows))
    layer.check_states([1])


def test_equal_keys_without_decay_do_not_blow_up() -> None:
    """A chunk's inverse has entries of -1 and 1 then; its powers would have enormous ones."""
    layer = Layer(value_heads=1)
    inputs, gates = layer.random_rows(64)
    inputs[:] = inputs[0]  # the same token again and again
    gates[:, 0], gates[:, 1] = 30.0, -60.0  # steps of one, and no decay
    expected = layer.reference(0, inputs, gates)
    assert_close(layer.prefill((inputs, gates), [64], [0], [0]), expected, 3 * TOLERANCE)
    assert_close(layer.states[0], layer.expected[0], 3 * TOLERANCE)


@pytest.mark.parametrize("numbers", [(64, 128, 4), (96, 96, 4), (128, 128, 3)])
def test_shapes_that_no_kernel_takes_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(UnsupportedModelError, match="expected"):
        check_delta(*numbers)
