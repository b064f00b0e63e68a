"""What adapters add to products on a GPU, in the interpreter: equal to the reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.layout import ACTIVATION_GROUP, Partials, Plain, Quantized, adapter_tile_rows
from zse.kernels.low_rank.launch import (
    AdaptedMatrix,
    AdaptedRows,
    expand,
    packed_starts,
    shrink,
    workspace_bytes,
)
from zse.kernels.low_rank.reference import add_low_rank
from zse.kernels.low_rank.variants import PIECE, PLACE_BYTES, RECORD_NUMBERS

PARTS = (72, 24)
MOST_RANK = 32
SCALES = (0.5, 3.0)
ADAPTERS = {1: (8, 24), 40: (24, 0)}
"""Ranks of the two parts, by the place of the adapter."""


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


class Memory:
    """The memory of adapters, and what lies there as float32."""

    def __init__(self, columns: int) -> None:
        self.numbers = torch.full((64 * PLACE_BYTES * 20,), float("nan"), dtype=torch.bfloat16)
        self.parts: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        words = self.numbers.view(torch.int64)
        end = 60 * PLACE_BYTES // 2
        for place, ranks in ADAPTERS.items():
            self.parts[place] = []
            for part, (rank, rows) in enumerate(zip(ranks, PARTS, strict=True)):
                first = place * PLACE_BYTES // 8 + (1 + part) * RECORD_NUMBERS
                down, up = random(rank, columns), random(rows, rank)
                self.parts[place].append((down.float(), up.float()))
                scale = torch.tensor(SCALES[part]).view(torch.int32)
                starts = (end // PIECE, (end + down.numel()) // PIECE)
                record = torch.tensor([*starts, rank // PIECE, int(scale)])
                words[first : first + RECORD_NUMBERS] = record
                for matrix in (down, up):
                    self.numbers[end : end + matrix.numel()] = matrix.flatten()
                    end += matrix.numel()
        assert end < self.numbers.numel()


def added(
    memory: Memory,
    rows: list[int],
    inputs: torch.Tensor,
    outputs: torch.Tensor,
    form: type[Quantized] | type[Plain] = Plain,
    prefill_rows: int = 0,
) -> torch.Tensor:
    """Return the outputs with what the adapters at each row's place add; place -1 is none."""
    tile_rows, columns = adapter_tile_rows(prefill_rows), inputs.shape[1]
    tiles, places = [], []
    for place in sorted({place for place in rows if place >= 0}):
        own = [row for row, other in enumerate(rows) if other == place]
        tiles.append(torch.tensor([*own, *[-1] * (tile_rows - len(own))], dtype=torch.int32))
        places.append(place)
    tiles.append(torch.full((tile_rows,), 10**6, dtype=torch.int32))  # which nobody looks at
    held_rows = torch.stack(tiles)
    held_places = torch.tensor([*places, -1], dtype=torch.int32)
    starts = torch.frombuffer(bytearray(packed_starts(PARTS)), dtype=torch.int32)
    tiled = {"tiles": len(held_rows), "tile_rows": tile_rows}
    size = workspace_bytes(columns, len(PARTS), MOST_RANK, **tiled)
    workspace = torch.full((size // 4,), float("nan"))
    kept: list[torch.Tensor] = []
    if form is Plain:
        kept.append(inputs.bfloat16())
        given = Plain(rows=len(rows), columns=columns, values=kept[0].data_ptr())
    else:
        groups = inputs.view(len(rows), -1, ACTIVATION_GROUP)
        scales = groups.abs().amax(2, keepdim=True) / 127
        kept += [(groups / scales).round().to(torch.int8), scales.contiguous()]
        given = Quantized(
            rows=len(rows), columns=columns, codes=kept[0].data_ptr(), scales=kept[1].data_ptr(),
            sums=0,
        )  # fmt: skip
    found = outputs.clone()
    where = {"rows": len(rows), "columns": sum(PARTS), "values": found.data_ptr()}
    matrix = AdaptedMatrix(
        first_record=1, starts=starts.data_ptr(), parts=2, widest_part=max(PARTS),
        memory=memory.numbers.data_ptr(), most_rank=MOST_RANK,
    )  # fmt: skip
    adapted = AdaptedRows(
        tiles=len(held_places), tile_rows=tile_rows, rows=held_rows.data_ptr(),
        places=held_places.data_ptr(),
    )  # fmt: skip
    launcher, target = InterpretedLauncher(), Partials(**where, splits=1)
    if outputs.dtype == torch.bfloat16:
        target = Plain(**where)
    shrink(launcher, matrix, adapted, given, workspace.data_ptr())
    expand(launcher, matrix, adapted, columns, target, workspace.data_ptr())
    return found


def expected(
    memory: Memory, rows: list[int], inputs: torch.Tensor, outputs: torch.Tensor
) -> torch.Tensor:
    found = outputs.float().clone()
    for row, place in enumerate(rows):
        first = 0
        for part, columns in enumerate(PARTS):
            if place >= 0:
                down, up = memory.parts[place][part]
                add_low_rank(
                    found[row : row + 1], inputs[row : row + 1].float(), down, up, first=first,
                    scale=SCALES[part],
                )  # fmt: skip
            first += columns
    return found


@pytest.fixture
def case() -> SimpleNamespace:
    torch.manual_seed(7)
    columns = 640  # which is two chunks
    inputs = torch.randn(5, columns).bfloat16().float() / 16
    return SimpleNamespace(
        memory=Memory(columns), rows=[1, -1, 40, 1, -1], inputs=inputs,
        outputs=torch.randn(5, sum(PARTS)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "prefill_rows", "dtype"),
    [
        (Plain, 0, torch.float32),
        (Quantized, 0, torch.bfloat16),
        (Plain, 5, torch.float32),
        (Plain, 5, torch.bfloat16),
    ],
)
def test_rows_have_what_their_adapters_add_and_others_nothing(
    case: SimpleNamespace, form: type[Plain], prefill_rows: int, dtype: torch.dtype
) -> None:
    case.outputs = case.outputs.to(dtype)
    found = added(case.memory, case.rows, case.inputs, case.outputs, form, prefill_rows)
    wanted = expected(case.memory, case.rows, case.inputs, case.outputs)
    error, size = (found.float() - wanted).norm(), (wanted - case.outputs.float()).norm()
    assert float(error / size) < 1e-2
    assert found[1].equal(case.outputs[1])
    assert found[4].equal(case.outputs[4])


def test_a_row_has_the_same_bits_whatever_stands_beside_it(case: SimpleNamespace) -> None:
    together = added(case.memory, case.rows, case.inputs, case.outputs)
    for row in (0, 2, 3):
        one = slice(row, row + 1)
        alone = added(case.memory, case.rows[one], case.inputs[one], case.outputs[one])
        assert alone[0].equal(together[row])


def test_matrices_that_the_kernels_do_not_read_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="a part of 12 columns"):
        packed_starts((16, 12))
