"""The kernel of drafts on a GPU: the states and outputs of single tokens."""

from __future__ import annotations

import pytest
import torch
from kernels_on_gpu import KernelsOnGpu, kernels_on_gpu

from zse.kernels.delta.launch import DeltaStates, DeltaVectors, delta_decode
from zse.kernels.delta.shape import DeltaShape
from zse.kernels.layout import Partials, Plain, Quantized

pytestmark = pytest.mark.gpu
SLOTS, TAPS = [2, 0, 3, 4, 5, 1], 4
RUNS = [5, 0, 0, 0, 0, 1]


class Rows:
    """Random rows of a layer, of which the first five follow each other; and states to go on with."""

    def __init__(self, kernels: KernelsOnGpu, head_dim: int, *, quantized: bool) -> None:
        torch.manual_seed(head_dim)
        self.kernels, self.quantized = kernels, quantized
        self.shape = shape = DeltaShape(
            num_key_heads=2,
            num_value_heads=4,
            key_dim=head_dim,
            value_dim=head_dim,
            convolution_width=TAPS,
        )
        self.inputs, self.gates = torch.randn(3, 6, shape.input_columns), torch.randn(1, 6, 8)
        self.before = torch.randn(7, TAPS, shape.channels), torch.randn(7, 4, head_dim, head_dim)
        self.vectors = DeltaVectors(
            convolution=kernels.send(torch.randn(shape.channels, TAPS) * 0.5),
            decay=kernels.send(torch.rand(4) * 3 - 2),
            step_bias=kernels.send(torch.randn(4)),
            norm=kernels.send(torch.rand(head_dim) + 0.5),
            epsilon=1e-6,
        )
        self.begin()

    def begin(self) -> None:
        """Have the states as they were before any row."""
        rings, matrices = map(self.kernels.send, self.before)
        self.states = DeltaStates(rings=rings, matrices=matrices)

    def states_now(self) -> tuple[torch.Tensor, torch.Tensor]:
        rings, matrices = self.before
        read = self.kernels.read
        return (
            read(self.states.rings, torch.float32, *rings.shape),
            read(self.states.matrices, torch.float32, *matrices.shape),
        )

    def compute(
        self, rows: slice, positions: list[int], slots: list[int], runs: list[int] | None = None
    ) -> torch.Tensor:
        """Return some rows' outputs, or their codes."""
        count, columns = len(slots), self.shape.value_columns
        send, room = self.kernels.send, self.kernels.room(2 * count * columns).address
        scales = send(torch.zeros(2, count, columns // 64))
        output: Plain | Quantized = Plain(rows=count, columns=columns, values=room)
        if self.quantized:
            sums = scales + 4 * count * (columns // 64)
            output = Quantized(rows=count, columns=columns, codes=room, scales=scales, sums=sums)
        delta_decode(
            self.kernels.launcher,
            self.shape,
            self._partials(self.inputs[:, rows]),
            self._partials(self.gates[:, rows]),
            self.vectors,
            self.states,
            output,
            positions_address=send(torch.tensor(positions, dtype=torch.int32)),
            slots_address=send(torch.tensor(slots, dtype=torch.int32)),
            runs_address=send(torch.tensor(runs, dtype=torch.int32)) if runs else 0,
        )
        dtype = torch.int8 if self.quantized else torch.bfloat16
        return self.kernels.read(room, dtype, count, columns).float()

    def _partials(self, summands: torch.Tensor) -> Partials:
        splits, rows, columns = summands.shape
        address = self.kernels.send(summands.contiguous())
        return Partials(rows=rows, columns=columns, splits=splits, values=address)


@pytest.mark.parametrize(("head_dim", "quantized"), [(64, False), (128, False), (128, True)])
@pytest.mark.parametrize("start", [0, 2, 9])
def test_drafts_are_computed_as_tokens_one_after_the_other_and_leave_their_states(
    head_dim: int, quantized: bool, start: int
) -> None:
    """But for the last bits: the compiler contracts the two kernels' sums apart."""
    with kernels_on_gpu() as kernels:
        rows = Rows(kernels, head_dim, quantized=quantized)
        positions = [*range(start, start + 5), 7]
        found = rows.compute(slice(0, 6), positions, SLOTS, RUNS)
        rings, matrices = rows.states_now()
        rows.begin()
        for row, slot in enumerate(SLOTS):
            own = SLOTS[0] if RUNS[row] == 0 else slot
            alone = rows.compute(slice(row, row + 1), [positions[row]], [own])
            closeness = {"rtol": 0.0, "atol": 1.0} if quantized else {"rtol": 2e-2, "atol": 1e-3}
            torch.testing.assert_close(found[row : row + 1], alone, **closeness)
            left_rings, left_matrices = rows.states_now()
            torch.testing.assert_close(matrices[slot], left_matrices[own], rtol=1e-4, atol=1e-5)
            for past in range(min(TAPS - 1, positions[row] + 1)):
                line = (positions[row] - past) % TAPS
                torch.testing.assert_close(rings[slot, line], left_rings[own, line])
