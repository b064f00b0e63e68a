"""Many rows whose sum over ranks is normed, turned and rounded by one kernel, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from forked_ranks import Group, run_ranks
from interpreted import InterpretedLauncher

from zse.kernels.exchange import reference
from zse.kernels.exchange.launch import rank_norm_turned, rank_sum
from zse.kernels.layout import Partials, Turned
from zse.kernels.norm import reference as norm_reference
from zse.kernels.turned.launch import turned_norm

EPSILON, HIDDEN = 1e-6, 256


@pytest.mark.parametrize(("ranks", "rows"), [(2, 5), (3, 2)])
def test_rows_of_all_ranks_sums_are_normed_and_turned(ranks: int, rows: int) -> None:
    """Between two of them stands another exchange: neither finds words of the other's."""
    torch.manual_seed(rows)
    group = Group(ranks, programs=2, hidden=HIDDEN)
    stream, weight = torch.randn(rows, HIDDEN), torch.randn(HIDDEN)
    parts = [torch.randn(2, rows, HIDDEN) for _ in range(ranks)]
    others = [group.memory.copy(torch.randn(1, rows, HIDDEN)) for _ in range(ranks)]
    streams = [group.memory.copy(stream) for _ in range(ranks)]
    codes = [group.memory.empty(rows, HIDDEN, dtype=torch.int8) for _ in range(ranks)]
    scales = [group.memory.empty(rows) for _ in range(ranks)]
    other_sum = reference.rank_sum(others)

    def work(rank: int) -> None:
        launcher, exchange = InterpretedLauncher(), group.exchange(rank)
        size = {"rows": rows, "columns": HIDDEN}
        output = Turned(**size, codes=codes[rank].data_ptr(), scales=scales[rank].data_ptr())
        added = Partials(**size, splits=2, values=parts[rank].data_ptr())
        other = Partials(**size, splits=1, values=others[rank].data_ptr())
        for _ in range(2):
            rank_norm_turned(
                launcher, exchange, streams[rank].data_ptr(), weight.data_ptr(), EPSILON, output, added
            )  # fmt: skip
            rank_sum(launcher, exchange, other)

    run_ranks([lambda rank=rank: work(rank) for rank in range(ranks)])
    group.check_empty()
    added = reference.rank_sum(parts, narrow=True)
    for _ in range(2):
        stream, _ = norm_reference.residual_norm(stream, weight, EPSILON, added[None])
    own, own_scales = torch.empty(rows, HIDDEN, dtype=torch.int8), torch.empty(rows)
    alone = Turned(rows=rows, columns=HIDDEN, codes=own.data_ptr(), scales=own_scales.data_ptr())
    for rank in range(ranks):
        torch.testing.assert_close(streams[rank], stream, rtol=1e-5, atol=1e-4)
        turned_norm(
            InterpretedLauncher(), streams[rank].data_ptr(), weight.data_ptr(), EPSILON, alone
        )
        assert torch.equal(codes[rank], own)
        torch.testing.assert_close(scales[rank], own_scales)
        torch.testing.assert_close(others[rank][0], ranks * other_sum, rtol=1e-5, atol=1e-4)
    assert torch.equal(streams[0], streams[-1])
