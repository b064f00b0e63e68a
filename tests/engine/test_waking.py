from __future__ import annotations

import asyncio
import gc
import threading

import psutil
import pytest

from zse.engine.inbox import Inbox, UnreadBounds
from zse.engine.output import Delta
from zse.engine.waking import Doorbell, Waiter
from zse.errors import DeadlineError


def open_inbox() -> Inbox:
    return Inbox(
        num_choices=1,
        tokens_each=1,
        bounds=UnreadBounds(),
        others=list,
        on_choice_end=lambda: None,
        on_overflow=lambda: None,
    )


async def read_all(inbox, texts):
    while True:
        texts.append((await inbox.get()).text)


def test_letters_of_a_thread_are_read_in_their_order_and_its_failure_last():
    async def run():
        doorbell, inbox, texts = Doorbell(asyncio.get_running_loop()), open_inbox(), []

        def engine():
            for number in range(1000):
                doorbell.ring([(inbox, Delta(0, str(number)))])
            doorbell.ring([(inbox, DeadlineError("late"))])

        thread = threading.Thread(target=engine)
        thread.start()
        with pytest.raises(DeadlineError):
            await read_all(inbox, texts)
        thread.join()
        return texts

    assert asyncio.run(run()) == [str(number) for number in range(1000)]


def test_closed_it_brings_what_was_rung_for_and_leaves_no_descriptor():
    async def run():
        gc.collect()
        before = psutil.Process().num_fds()
        for number in range(3):
            doorbell, inbox = Doorbell(asyncio.get_running_loop()), open_inbox()
            doorbell.ring([(inbox, Delta(0, str(number)))])
            doorbell.close()
            assert (await inbox.get()).text == str(number)
            del doorbell
        await asyncio.sleep(0)
        gc.collect()
        return psutil.Process().num_fds() - before

    assert asyncio.run(run()) <= 0  # what others left may go meanwhile


def test_it_is_answered_when_its_readers_have_gone_on_and_says_so():
    async def run():
        loop, inbox, texts, told = asyncio.get_running_loop(), open_inbox(), [], []
        doorbell = Doorbell(loop, lambda: told.append(list(texts)))
        reader = loop.create_task(read_all(inbox, texts))
        await asyncio.sleep(0)  # it waits
        states = [doorbell.is_answered]
        doorbell.ring([(inbox, Delta(0, "a"))])
        doorbell.ring([(inbox, Delta(0, "b"))])
        states.append(doorbell.is_answered)
        while not told:
            await asyncio.sleep(0)
        states.append(doorbell.is_answered)
        reader.cancel()
        return states, told

    assert asyncio.run(run()) == ([True, False, True], [["a", "b"]])


def test_a_loop_that_is_late_hands_all_that_has_come_to_its_readers_at_once():
    async def run():
        doorbell, loop = Doorbell(asyncio.get_running_loop()), asyncio.get_running_loop()
        order = []

        async def read(name, inbox):
            while len(order) < 4:
                await inbox.get()
                order.append(name)

        inboxes = {name: open_inbox() for name in "ab"}
        readers = [loop.create_task(read(name, inbox)) for name, inbox in inboxes.items()]
        await asyncio.sleep(0)  # both wait
        for _ in range(2):
            doorbell.ring([(inbox, Delta(0, "x")) for inbox in inboxes.values()])
        while len(order) < 4:
            await asyncio.sleep(0)
        for reader in readers:
            reader.cancel()
        return order

    assert asyncio.run(run()) == ["a", "a", "b", "b"]


def test_a_task_goes_on_within_the_call_that_wakes_it():
    async def run():
        loop, events = asyncio.get_running_loop(), []
        waiter = Waiter()

        async def wait():
            await waiter
            events.append("goes on")

        def wake():
            waiter.wake()
            events.append("woken")
            waiter.wake()  # it has gone on already

        task = loop.create_task(wait())
        await asyncio.sleep(0)
        loop.call_soon(wake)
        await task
        return events

    assert asyncio.run(run()) == ["goes on", "woken"]


def test_who_is_woken_before_it_waits_does_not_wait():
    async def run():
        waiter = Waiter()
        waiter.wake()
        await waiter

    asyncio.run(run())


def test_a_task_that_is_cancelled_gives_up_waiting():
    async def run():
        waiter = Waiter()

        async def wait():
            await waiter

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiter.wake()  # nobody is there any more

    asyncio.run(run())


def test_a_closed_loop_takes_no_letters():
    loop = asyncio.new_event_loop()
    doorbell = Doorbell(loop)
    loop.close()
    with pytest.raises(RuntimeError):
        doorbell.ring([])
