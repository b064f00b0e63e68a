"""Sums and parts of several ranks, in the interpreter: each rank is a process, and really waits."""

from __future__ import annotations

import os
import time

import pytest
import torch
from forked_ranks import Group, poison, run_ranks
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.exchange import reference
from zse.kernels.exchange.launch import rank_gather, rank_norm, rank_sum
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm import reference as norm_reference

EPSILON = 1e-6


def partials(tensor: torch.Tensor) -> Partials:
    splits, rows, columns = tensor.shape
    return Partials(rows=rows, columns=columns, splits=splits, values=tensor.data_ptr())


def summed_by_ranks(
    group: Group,
    steps: list[list[torch.Tensor]],
    biases: list[torch.Tensor | None] | None = None,
    *,
    narrow: bool = False,
) -> list[list[torch.Tensor]]:
    """Return what each rank holds after it went through all steps, each of its own summands."""
    shared = [[group.memory.copy(part) for part in step] for step in steps]

    def work(rank: int) -> None:
        bias = biases[rank] if biases else None
        for step in shared:
            rank_sum(
                InterpretedLauncher(), group.exchange(rank), partials(step[rank]), narrow=narrow,
                bias_address=0 if bias is None else bias.data_ptr(),
            )  # fmt: skip

    run_ranks([lambda rank=rank: work(rank) for rank in range(group.ranks)])
    group.check_empty()
    return [[part[0] for part in step] for step in shared]


@pytest.mark.parametrize(
    ("ranks", "shape"), [(2, (3, 2, 48)), (2, (1, 5, 1040)), (3, (2, 1, 128)), (4, (1, 1, 16))]
)
def test_all_ranks_hold_the_same_bits_of_the_sum_in_order_of_ranks(
    ranks: int, shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(ranks)
    parts = [torch.randn(shape) for _ in range(ranks)]
    biases = [torch.randn(shape[2]) if rank == 0 else None for rank in range(ranks)]
    (found,) = summed_by_ranks(Group(ranks), [parts], biases)
    expected = reference.rank_sum(parts, biases)
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_more_tiles_than_programs_and_step_after_step_use_slots_again() -> None:
    torch.manual_seed(1)
    steps = [[torch.randn(1, 3, 2048) for _ in range(2)] for _ in range(3)]
    group = Group(2, programs=1)
    for parts, found in zip(steps, summed_by_ranks(group, steps), strict=True):
        assert torch.equal(found[0], found[1])
        torch.testing.assert_close(found[0], reference.rank_sum(parts), rtol=1e-6, atol=1e-6)
    assert int(group.states[0][1]) == 9


@pytest.mark.parametrize("ranks", [2, 3])
def test_many_numbers_are_sent_as_bfloat16(ranks: int) -> None:
    torch.manual_seed(2)
    parts = [torch.randn(2, 5, 2064) for _ in range(ranks)]
    (found,) = summed_by_ranks(Group(ranks, programs=1), [parts], narrow=True)
    expected = reference.rank_sum(parts, narrow=True, in_two=ranks > 2)
    assert torch.equal(found[0], expected) or ranks > 2
    magnitudes = torch.stack([part.sum(0).abs() for part in parts]).sum(0)
    exact = reference.rank_sum(parts)
    assert ((found[0] - exact).abs() <= reference.NARROW_TOLERANCE * magnitudes).all()
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_numbers_that_look_like_nothing_sent_arrive_as_not_a_number() -> None:
    parts = [torch.ones(1, 1, 64), torch.ones(1, 1, 64)]
    parts[0].view(torch.int32)[0, 0, 5] = -1
    parts[1][0, 0, 9] = float("inf")
    parts[0][0, 0, 10] = float("nan")
    (found,) = summed_by_ranks(Group(2), [parts])
    for sums in found:
        assert sums[0].isnan().nonzero().flatten().tolist() == [5, 10]
        assert sums[0, 9] == float("inf")
        assert (sums[0, 11:] == 2).all()


@pytest.mark.parametrize(
    ("quantized", "narrow", "gathered"),
    [(True, False, False), (False, False, True), (False, True, False)],
)
def test_the_norm_of_all_ranks_sums_equals_the_reference(
    quantized: bool, narrow: bool, gathered: bool
) -> None:
    torch.manual_seed(3)
    rows, hidden, ranks = 3, 400 if narrow else 384, 2
    group = Group(ranks, programs=2, hidden=hidden)
    stream, weight = torch.randn(rows, hidden), torch.randn(hidden)
    parts = [torch.randn(2, rows, hidden) for _ in range(ranks)]
    bias = torch.randn(hidden)
    index = torch.tensor([2, 0], dtype=torch.int32)
    wanted = index.long() if gathered else torch.arange(rows)
    streams = [group.memory.copy(stream) for _ in range(ranks)]
    plain = [poison(group.memory.empty(len(wanted), hidden, dtype=torch.bfloat16)) for _ in parts]
    codes = [group.memory.empty(len(wanted), hidden, dtype=torch.int8) for _ in parts]
    scales = [[group.memory.empty(len(wanted), 3) for _ in range(2)] for _ in parts]

    def work(rank: int) -> None:
        size = {"rows": len(wanted), "columns": hidden}
        values = plain[rank].data_ptr()
        output = Quantized(
            **size, codes=codes[rank].data_ptr(),
            scales=scales[rank][0].data_ptr(), sums=scales[rank][1].data_ptr(),
        ) if quantized else Plain(**size, values=values)  # fmt: skip
        rank_norm(
            InterpretedLauncher(), group.exchange(rank), streams[rank].data_ptr(), len(wanted),
            hidden, weight.data_ptr(), EPSILON, output, partials(parts[rank]), narrow=narrow,
            added_bias_address=0 if rank else bias.data_ptr(),
            row_index_address=index.data_ptr() if gathered else 0,
        )  # fmt: skip

    run_ranks([lambda rank=rank: work(rank) for rank in range(ranks)])
    group.check_empty()
    added = reference.rank_sum(parts, [bias, None], narrow=narrow)
    new_stream, expected = norm_reference.residual_norm(stream, weight, EPSILON, added[None])
    for rank in range(ranks):
        after = stream if gathered else new_stream
        torch.testing.assert_close(streams[rank], after, rtol=1e-6, atol=1e-5)
        found = plain[rank].float()
        if quantized:
            found = norm_reference.dequantize(codes[rank], scales[rank][0])
        error = (found - expected[wanted]).abs().max() / expected[wanted].abs().max()
        assert error <= norm_reference.TOLERANCE
    assert torch.equal(streams[0], streams[1])
    assert torch.equal(plain[0], plain[1])
    assert torch.equal(codes[0], codes[1])


@pytest.mark.parametrize(("ranks", "columns", "part"), [(2, 3000, 2048), (3, 100, 48), (2, 60, 64)])
def test_every_rank_joins_the_columns_of_all(ranks: int, columns: int, part: int) -> None:
    torch.manual_seed(4)
    group, whole = Group(ranks), torch.randn(2, columns)
    found = [poison(group.memory.empty(2, columns)) for _ in range(ranks)]
    parts = [whole[:, rank * part : (rank + 1) * part].contiguous() for rank in range(ranks)]

    def work(rank: int) -> None:
        rank_gather(
            InterpretedLauncher(), group.exchange(rank), parts[rank].data_ptr(),
            found[rank].data_ptr(), rows=2, part_columns=part, own_columns=parts[rank].shape[1],
            columns=columns,
        )  # fmt: skip

    run_ranks([lambda rank=rank: work(rank) for rank in range(ranks)])
    group.check_empty()
    for rank in range(ranks):
        assert torch.equal(found[rank], reference.rank_gather(parts))


@pytest.mark.parametrize("reason", ["late", "broken"])
def test_who_waits_for_a_rank_that_is_gone_gives_up_tells_the_host_and_waits_no_more(
    reason: str,
) -> None:
    patience = 0.3 if reason == "late" else 1e6
    group = Group(2, patience_seconds=patience)
    group.broken[0] = int(reason == "broken")
    part = group.memory.copy(torch.ones(1, 1, 64))
    began = time.process_time()
    for _ in range(20):
        rank_sum(InterpretedLauncher(), group.exchange(0), partials(part))
    assert (int(group.states[0][0]), int(group.failed[0][0])) == (1, 1)
    assert int(group.states[0][1]) == 20
    assert time.process_time() - began < 20  # each of the 20 would have waited otherwise


def test_a_rank_that_comes_late_is_waited_for() -> None:
    group = Group(2)
    parts = [group.memory.copy(torch.full((1, 1, 32), rank + 1.0)) for rank in range(2)]

    def work(rank: int) -> None:
        time.sleep(0.2 * rank)
        rank_sum(InterpretedLauncher(), group.exchange(rank), partials(parts[rank]))

    run_ranks([lambda rank=rank: work(rank) for rank in range(2)])
    assert all((part == 3).all() for part in parts)
    group.check_empty()
    assert os.getpid()


def test_sums_and_parts_that_no_kernel_takes_are_refused() -> None:
    exchange, launcher = Group(2).exchange(0), InterpretedLauncher()
    odd = Partials(rows=1, columns=40, splits=1, values=0)
    with pytest.raises(UnsupportedModelError, match="40 columns over ranks"):
        rank_sum(launcher, exchange, odd)
    with pytest.raises(UnsupportedModelError, match="hidden size 16384"):
        rank_norm(
            launcher, exchange, 0, 1, 16384, 0, EPSILON,
            Plain(rows=1, columns=16384, values=0), odd,
        )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"has 60 of 100 columns .* expected 48"):
        rank_gather(launcher, exchange, 0, 0, rows=1, part_columns=48, own_columns=60, columns=100)
