"""Rows that several programs of each rank norm together, each program a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from forked_ranks import Group, poison, run_ranks
from interpreted import InterpretedLauncher
from triton.runtime.interpreter import interpreter_builder

from zse.kernels.exchange import reference
from zse.kernels.exchange.launch import part_groups, rank_norm
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm import reference as norm_reference

if TYPE_CHECKING:
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Value
    from zse.kernels.variant import Variant

EPSILON = 1e-6


class OneProgram(InterpretedLauncher):
    """Runs one program of a grid: the others run beside it, in processes of their own."""

    def __init__(self, program: int) -> None:
        super().__init__()
        self._program = program

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        with pytest.MonkeyPatch.context() as patched:
            set_dim, set_index = interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx
            patched.setattr(interpreter_builder, "set_grid_dim", lambda *_: set_dim(*grid))
            patched.setattr(
                interpreter_builder, "set_grid_idx", lambda *_: set_index(self._program, 0, 0)
            )
            super().launch(variant, (1, 1, 1), *arguments)


@pytest.mark.parametrize(
    ("rows", "hidden", "quantized", "gathered", "passes"),
    [(1, 1040, False, False, 2), (3, 1152, True, True, 1)],
)
def test_parts_of_rows_make_the_norm_of_all_ranks_sums(
    rows: int, hidden: int, quantized: bool, gathered: bool, passes: int
) -> None:
    """Three rows are more than the programs of two; passes after each other use slots again."""
    torch.manual_seed(4)
    ranks, groups = 2, 4
    parts_of_row = -(-hidden // (128 * groups))
    group = Group(ranks, programs=2 * parts_of_row, hidden=hidden)
    stream, weight, bias = torch.randn(rows + 1, hidden), torch.randn(hidden), torch.randn(hidden)
    parts = [torch.randn(2, rows + 1, hidden) for _ in range(ranks)]
    index = torch.tensor(list(range(rows, 0, -1)), dtype=torch.int32)
    wanted = index.long() if gathered else torch.arange(rows)
    streams = [group.memory.copy(stream) for _ in range(ranks)]
    plain = [poison(group.memory.empty(rows, hidden, dtype=torch.bfloat16)) for _ in parts]
    codes = [group.memory.empty(rows, hidden, dtype=torch.int8) for _ in parts]
    scales = [[group.memory.empty(rows, hidden // 128 + 1) for _ in range(2)] for _ in parts]

    def work(rank: int, program: int) -> None:
        size = {"rows": rows, "columns": hidden}
        output = Quantized(
            **size, codes=codes[rank].data_ptr(),
            scales=scales[rank][0].data_ptr(), sums=scales[rank][1].data_ptr(),
        ) if quantized else Plain(**size, values=plain[rank].data_ptr())  # fmt: skip
        added = Partials(rows=rows + 1, columns=hidden, splits=2, values=parts[rank].data_ptr())
        rank_norm(
            OneProgram(program), group.exchange(rank), streams[rank].data_ptr(), rows, hidden,
            weight.data_ptr(), EPSILON, output, added, groups_of_part=groups,
            added_bias_address=0 if rank else bias.data_ptr(),
            row_index_address=index.data_ptr() if gathered else 0,
        )  # fmt: skip

    count = min(rows, 2) * parts_of_row
    every = [(rank, program) for rank in range(ranks) for program in range(count)]
    for _ in range(passes):  # as one kernel ends before the next
        run_ranks([lambda rank=r, program=p: work(rank, program) for r, p in every])
    group.check_empty()
    added = reference.rank_sum(parts, [bias, None])
    expected = stream
    for _ in range(passes):
        stream, expected = norm_reference.residual_norm(stream, weight, EPSILON, added[None])
    for rank in range(ranks):
        found = plain[rank].float()
        if quantized:
            row_groups = hidden // 128
            kept = scales[rank][0].flatten()[: rows * row_groups].view(rows, row_groups)
            found = norm_reference.dequantize(codes[rank], kept)
        elif not gathered:
            torch.testing.assert_close(streams[rank][:rows], stream[:rows], rtol=1e-5, atol=1e-4)
        error = (found - expected[wanted]).abs().max() / expected[wanted].abs().max()
        assert error <= norm_reference.TOLERANCE
    assert torch.equal(streams[0], streams[1])
    assert torch.equal(plain[0], plain[1]) or quantized
    assert torch.equal(codes[0], codes[1])


def test_programs_of_a_row_whose_other_rank_is_gone_all_end_and_tell_the_host() -> None:
    hidden, groups = 1024, 4
    group = Group(2, programs=2, hidden=hidden, patience_seconds=1e6)
    group.broken[0] = 1
    tensors = [group.memory.copy(torch.ones(1, hidden)) for _ in range(3)]
    output = group.memory.empty(1, hidden, dtype=torch.bfloat16)

    def work(program: int) -> None:
        stream, weight, part = (tensor.data_ptr() for tensor in tensors)
        rank_norm(
            OneProgram(program), group.exchange(0), stream, 1, hidden, weight, EPSILON,
            Plain(rows=1, columns=hidden, values=output.data_ptr()),
            Partials(rows=1, columns=hidden, splits=1, values=part), groups_of_part=groups,
        )  # fmt: skip

    for _ in range(2):
        run_ranks([lambda program=program: work(program) for program in range(2)])
    assert (int(group.states[0][0]), int(group.failed[0][0])) == (1, 1)
    assert group.states[0][1:].tolist() == [2, 2]


def test_as_many_programs_make_a_wide_row_as_all_fit_at_once() -> None:
    found = [part_groups(rows, 8192, 128) for rows in (1, 2, 8, 9, 16, 17)]
    assert found == [1, 4, 4, 8, 8, 0]
    assert part_groups(18, 3584, 128) == 4
    assert part_groups(1, 8192, 8) == 8
    assert part_groups(1, 8192, 7) == part_groups(1, 1024, 128) == 0
