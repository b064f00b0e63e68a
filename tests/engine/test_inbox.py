from __future__ import annotations

import asyncio

import pytest

from zse.engine.inbox import Inbox, UnreadBounds
from zse.engine.output import Delta
from zse.errors import DeadlineError, UnreadOutputError


class Office:
    """Inboxes that share a bound, and what they told."""

    def __init__(self, **bounds: int) -> None:
        self.bounds = UnreadBounds(**bounds)
        self.inboxes: list[Inbox] = []
        self.num_ended = 0
        self.num_overflows = 0

    def open(self, *, num_choices=1, tokens_each=1) -> Inbox:
        inbox = Inbox(
            num_choices=num_choices,
            tokens_each=tokens_each,
            bounds=self.bounds,
            others=lambda: self.inboxes,
            on_choice_end=self._end,
            on_overflow=self._overflow,
        )
        self.inboxes.append(inbox)
        return inbox

    def _end(self) -> None:
        self.num_ended += 1

    def _overflow(self) -> None:
        self.num_overflows += 1


def fill(inbox, count, **fields):
    for _ in range(count):
        inbox.put(Delta(0, "x", **fields))


def in_loop(function):
    async def run():
        return await function()

    return lambda: asyncio.run(run())


@in_loop
async def test_a_choice_has_ended_when_its_end_arrives_and_not_when_it_is_read():
    office = Office()
    inbox = office.open(num_choices=2)
    fill(inbox, 2, finish_reason="stop")
    assert office.num_ended == 2
    assert (await inbox.get()).finish_reason == "stop"


@in_loop
async def test_a_failure_ends_what_has_not_ended_and_leaves_what_was_made():
    office = Office()
    inbox = office.open(num_choices=3)
    fill(inbox, 1, finish_reason="stop")
    inbox.put(DeadlineError("late"))
    fill(inbox, 1)  # what the engine had made meanwhile
    assert office.num_ended == 3
    assert (await inbox.get()).text == "x"
    with pytest.raises(DeadlineError):
        await inbox.get()


@in_loop
async def test_what_lies_unread_beyond_the_bound_is_dropped_with_an_error():
    office = Office(each=1000)
    inbox = office.open(num_choices=2)
    fill(inbox, 1000)
    assert (office.num_overflows, inbox.num_unread) == (0, 1000)
    fill(inbox, 2000)
    assert (office.num_overflows, office.num_ended, inbox.num_unread) == (1, 2, 0)
    with pytest.raises(UnreadOutputError):
        await inbox.get()


@in_loop
async def test_alternatives_count_as_tokens():
    office = Office(each=1000)
    inbox = office.open(tokens_each=21)
    fill(inbox, 256)
    assert office.num_overflows == 1


@in_loop
async def test_an_answer_that_is_whole_and_unread_is_dropped_too():
    office = Office(each=200)
    inbox = office.open(num_choices=256)
    fill(inbox, 256, finish_reason="length")
    assert (office.num_ended, office.num_overflows) == (256, 1)
    with pytest.raises(UnreadOutputError):
        await inbox.get()


@in_loop
async def test_together_they_hold_no_more_than_there_is_room_for_and_readers_are_left_alone():
    office = Office(each=10_000, together=3000)
    stuck = [office.open() for _ in range(4)]
    read = office.open()
    for _ in range(3000):
        for inbox in (*stuck, read):
            fill(inbox, 1)
        await read.get()
    assert sum(inbox.num_unread for inbox in office.inboxes) <= 3000 + 5 * 256
    assert office.num_overflows >= 3
    fill(read, 1)
    assert (await read.get()).text == "x"
