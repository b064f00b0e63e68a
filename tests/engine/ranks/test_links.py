"""What ranks give each other: payloads and open files, in the order of the ranks."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from zse.backends.ranks import Gift, Share
from zse.engine.ranks.links import (
    MOST_BYTES,
    Failed,
    LeaderLink,
    MemberLink,
    error_of,
    note_of,
    receive_note,
)
from zse.engine.ranks.shared import SharedMemory
from zse.errors import DeviceError, NotFoundError, UsageError


def file_of(text: bytes) -> int:
    fd = os.memfd_create("given")
    os.write(fd, text)
    return fd


def test_every_rank_gets_what_all_gave_files_among_it() -> None:
    ranks = 3
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(ranks - 1)]
    shared = SharedMemory()
    leader = LeaderLink(Share(rank=0, ranks=ranks), shared, [one for one, _ in pairs], lambda: None)

    def hear(rank: int) -> None:
        for _ in range(2):
            note, descriptors = receive_note(pairs[rank - 1][0])
            leader.put(rank, Gift(note.payload, tuple(descriptors)))

    found: dict[int, list[tuple[bytes, list[bytes]]]] = {}
    least: dict[int, list[int]] = {}

    def be(rank: int) -> None:
        link = leader
        if rank:
            link = MemberLink(Share(rank=rank, ranks=ranks), shared, pairs[rank - 1][1])
        own = [file_of(b"%d.%d" % (rank, number)) for number in range(rank)]
        gifts = link.exchange(b"from %d" % rank, own)
        found[rank] = [
            (gift.payload, [os.pread(fd, 10, 0) for fd in gift.descriptors]) for gift in gifts
        ]
        for fd in {fd for gift in gifts for fd in gift.descriptors}:
            os.close(fd)
        least[rank] = link.least([5 - rank, 7 + rank])

    threads = [threading.Thread(target=hear, args=(rank,)) for rank in (1, 2)]
    threads += [threading.Thread(target=be, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for one, other in pairs:
        one.close()
        other.close()
    expected = [(b"from 0", []), (b"from 1", [b"1.0"]), (b"from 2", [b"2.0", b"2.1"])]
    assert [found[rank] for rank in range(ranks)] == [expected] * ranks
    assert [least[rank] for rank in range(ranks)] == [[3, 7]] * ranks


def test_who_waits_for_a_gift_is_told_when_the_ranks_have_failed() -> None:
    shared = SharedMemory()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        link = MemberLink(Share(rank=1, ranks=2), shared, other)
        threading.Timer(0.05, shared.break_off).start()
        with pytest.raises(DeviceError, match="another rank has failed"):
            link.exchange(b"")
        with pytest.raises(DeviceError, match="at most"):
            link.exchange(bytes(MOST_BYTES + 1))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (UsageError("no", hint="do"), UsageError, "rank 1: no"),
        (NotFoundError("gone"), NotFoundError, "rank 1: gone"),
        (ValueError("odd"), DeviceError, "rank 1: ValueError: odd"),
        (MemoryError(), DeviceError, "rank 1: MemoryError: "),
    ],
)
def test_a_failure_is_raised_again_as_what_it_was(
    error: BaseException, kind: type[Exception], words: str
) -> None:
    told = error_of("rank 1", note_of(error))
    assert type(told) is kind
    assert str(told) == words


@pytest.mark.parametrize("kind", ["BaseException", "ZSEError.__init__", "exit", ""])
def test_a_failure_of_an_unknown_kind_is_one_of_the_device(kind: str) -> None:
    assert type(error_of("rank 1", Failed(kind, "x", ""))) is DeviceError
