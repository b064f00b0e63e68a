"""How the inboxes of ranks come to be shared, on the stub driver: each rank is a thread."""

from __future__ import annotations

import ctypes
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from joined_ranks import Board, ThreadLink
from stub_libcuda import PIECE_KIND, Stub, stub

from zse.backends.gpu.collectives import Collectives
from zse.backends.gpu.forward import Residual
from zse.backends.gpu.weights import BoundNorm
from zse.backends.ranks import Gift
from zse.device.cuda.gpu import Gpu
from zse.errors import DeviceError
from zse.kernels.layout import Partials
from zse.kernels.norm.launch import PostNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["stub"]
HIDDEN = 8192


class DuplicatingLink(ThreadLink):
    """A link whose descriptors are the receiver's own, as those of a socket are."""

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        gifts = super().exchange(payload, descriptors)
        self.received = [
            gift
            if rank == self.share.rank
            else Gift(gift.payload, tuple(os.dup(each) for each in gift.descriptors))
            for rank, gift in enumerate(gifts)
        ]
        self._board.barrier.wait()  # whoever gave them closes them
        return self.received


class LyingLink(DuplicatingLink):
    """A link on which rank 1 has another version of zse."""

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        lies = self.share.rank == 1 and descriptors
        return super().exchange(b'{"length_bytes": 1}' if lies else payload, descriptors)


def open_ranks(
    stub: Stub, ranks: int, make: Callable[[Board, int], ThreadLink], stack: ExitStack
) -> list[Collectives]:
    board = Board(ranks)

    def open_one(rank: int) -> Collectives:
        gpu = Gpu.open(rank, driver=stub.driver())
        stack.callback(gpu.close)
        return Collectives(gpu, gpu.create_stream(), make(board, rank), hidden=HIDDEN)

    with ThreadPoolExecutor(ranks) as pool:
        return [each.result() for each in [pool.submit(open_one, rank) for rank in range(ranks)]]


def test_every_rank_maps_the_empty_inboxes_of_all_others(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "3")
    with ExitStack() as stack:
        opened = open_ranks(stub, 3, DuplicatingLink, stack)
        for rank, each in enumerate(opened):
            stack.callback(each.close)
            exchange = each.exchange
            assert (exchange.rank, exchange.ranks, exchange.programs) == (rank, 3, 128)
            assert exchange.slot_words == HIDDEN
            offsets = struct.unpack("<3q", ctypes.string_at(exchange.offsets, 24))
            assert offsets[rank] == 0
            for peer, offset in enumerate(offsets):
                word = ctypes.c_int32.from_address(exchange.words + 4 * offset + 4 * rank)
                assert word.value == -1
                word.value = 100 * rank
                seen = ctypes.c_int32.from_address(opened[peer].exchange.words + 4 * rank)
                assert seen.value == 100 * rank
            assert ctypes.string_at(exchange.state, 4 * 129) == bytes(4 * 129)
            each.check()
        assert stub.bytes_of(PIECE_KIND) == 9 * opened[0]._inbox.length_bytes
    assert stub.bytes_of(PIECE_KIND) == 0


def test_a_rank_that_gave_up_waiting_says_so(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    with ExitStack() as stack:
        one, other = open_ranks(stub, 2, DuplicatingLink, stack)
        for each in (one, other):
            stack.enter_context(closing(each))
        ctypes.c_int32.from_address(other.exchange.failed).value = 1
        one.check()
        with pytest.raises(DeviceError, match=r"rank 1 waited 10 s .* still there"):
            other.check()
        ctypes.c_int32.from_address(other.exchange.broken).value = 1
        with pytest.raises(DeviceError, match="the ranks have failed"):
            other.check()


def test_ranks_of_two_versions_are_refused_and_hold_nothing(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    with ExitStack() as stack, pytest.raises(DeviceError, match="has another inbox than this one"):
        open_ranks(stub, 2, LyingLink, stack)
    assert stub.bytes_of(PIECE_KIND) == 0


def test_gpus_that_do_not_see_each_other_are_refused(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemImportFromShareableHandle:801")
    with ExitStack() as stack, pytest.raises(DeviceError, match="cuMemImportFromShareableHandle"):
        open_ranks(stub, 2, DuplicatingLink, stack)


def test_a_word_that_cannot_be_mapped_leaves_the_clock(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemHostRegister_v2:801")
    with ExitStack() as stack:
        opened = open_ranks(stub, 2, DuplicatingLink, stack)
        for each in opened:
            stack.callback(each.close)
            assert ctypes.c_int32.from_address(each.exchange.broken).value == 0
            each.check()
    assert "wait by the clock alone" in caplog.text


def test_more_ranks_than_an_exchange_takes_are_refused(stub: Stub) -> None:
    with (
        Gpu.open(driver=stub.driver()) as gpu,
        pytest.raises(DeviceError, match="9 GPUs were asked for one model"),
    ):
        Collectives(gpu, gpu.create_stream(), ThreadLink(Board(9), 0), hidden=HIDDEN)


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"pending": None}, False),
        ({"is_share": False}, False),
        ({"scale": 0.5}, False),
        ({"post": PostNorm()}, False),
    ],
)
def test_a_sum_is_fused_with_the_norm_that_reads_it_where_nothing_comes_between(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], taken: bool
) -> None:
    sums = Partials(rows=1, columns=HIDDEN, splits=1, values=16)
    residual = Residual(address=16, pending=sums, is_share=True)
    for name, value in changes.items():
        setattr(residual, name, value)
    norm = BoundNorm(weight=16, bias=0, epsilon=1e-6, is_layer_norm=False)
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    with ExitStack() as stack:
        one, other = open_ranks(stub, 2, DuplicatingLink, stack)
        stack.callback(other.close)
        stack.callback(one.close)
        few, more = (SimpleNamespace(shape=SimpleNamespace(rows=rows)) for rows in (1, 32))
        assert one.takes_norm(few, residual, norm, 4096) == taken
        assert one.takes_norm(more, residual, norm, HIDDEN) == taken
        assert one.takes_norm(few, residual, norm, HIDDEN) == taken
        other._is_exact = True  # a row's squares are always added up in one order
        assert not other.takes_norm(few, residual, norm, HIDDEN)
        assert not one.takes_norm(more, residual, None, HIDDEN)
        assert not one.takes_norm(more, residual, norm, 2 * HIDDEN)
