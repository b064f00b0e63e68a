"""The ring of ranks: messages of any length in their order, and nobody waits for one that is gone."""

from __future__ import annotations

import ctypes
import random
import threading

import pytest

from zse.engine.ranks.shared import RING_BYTES, Receiver, Sender, SharedMemory
from zse.errors import DeviceError, EngineError
from zse.kernels.native.library import load


def nothing_wrong() -> None:
    """No rank has failed."""


def receive_all(receiver: Receiver, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        data = receiver.receive()
        if data is not None:
            found.append(bytes(data))
            receiver.done()
    return found


def test_messages_of_all_lengths_reach_every_rank_in_their_order() -> None:
    shared, chance = SharedMemory(), random.Random(4)
    sender = Sender(shared, load(), 3, nothing_wrong)
    lengths = [0, 1, RING_BYTES, 7, RING_BYTES // 2 + 1, RING_BYTES // 2 + 1]
    lengths += [chance.randrange(2000) for _ in range(700)]
    messages = [
        chance.randbytes(length % 5000) + b"x" * (length // 5000 * 5000) for length in lengths
    ]
    found: dict[int, list[bytes]] = {}

    def be(rank: int) -> None:
        receiver = Receiver(SharedMemory(shared.fd), load(), rank, spin_ns=1000 * rank)
        found[rank] = receive_all(receiver, len(messages))

    threads = [threading.Thread(target=be, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    for message in messages:
        sender.send(message)
    for thread in threads:
        thread.join(60)
    assert found == {1: messages, 2: messages}
    assert sender.num_done == len(messages)


def test_a_message_that_no_ring_holds_is_refused() -> None:
    sender = Sender(SharedMemory(), load(), 2, nothing_wrong)
    with pytest.raises(EngineError, match="more than the"):
        sender.send(bytes(RING_BYTES + 1))


def test_who_waits_for_room_is_told_when_the_ranks_have_failed() -> None:
    shared = SharedMemory()

    def check() -> None:
        if shared.is_broken:
            raise DeviceError("rank 1 was lost")

    sender = Sender(shared, load(), 2, check)
    threading.Timer(0.05, shared.break_off).start()

    def fill() -> None:
        for _ in range(1000):
            sender.send(bytes(RING_BYTES // 100))

    with pytest.raises(DeviceError, match="rank 1 was lost"):
        fill()


def test_who_waits_for_a_message_is_told_when_the_ranks_have_failed() -> None:
    shared = SharedMemory()
    receiver = Receiver(shared, load(), 1, spin_ns=0)
    assert receiver.receive() is None  # for now
    shared.break_off()
    assert receiver.receive() is None
    assert shared.is_broken


def test_memory_behind_the_ring_is_the_same_for_all_ranks() -> None:
    one = SharedMemory()
    other = SharedMemory(one.fd)
    first, second = one.area(8192), other.area(8192)
    ctypes.memmove(first + 100, b"here", 4)
    assert ctypes.string_at(second + 100, 4) == b"here"
