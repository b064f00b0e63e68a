"""A log of events: read from anywhere, bounded, and honest about what is gone."""

import asyncio
from contextlib import aclosing

import pytest

from zse.serve.http.errors import EventsGoneError
from zse.serve.http.event_log import EventLog


async def take(log, count, *, after=-1):
    """Return the next events behind one."""
    found = []
    async with aclosing(log.read(after=after)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def fill(log, count):
    for number in range(count):
        await log.append(b"%d" % number)


def test_a_log_is_read_from_any_event_by_many_readers():
    async def run():
        log = EventLog()
        await fill(log, 4)
        log.end()
        assert await take(log, 9) == [b"0", b"1", b"2", b"3"]
        assert await take(log, 9, after=1) == [b"2", b"3"]
        assert await take(log, 9, after=3) == []
        assert log.num_readers == 0

    asyncio.run(run())


def test_readers_get_events_as_they_come_and_then_the_failure():
    async def run():
        log = EventLog()
        reader = asyncio.create_task(take(log, 99))
        await fill(log, 3)
        await asyncio.sleep(0)
        log.end(ValueError("broken"))
        with pytest.raises(ValueError, match="broken"):
            await reader

    asyncio.run(run())


def test_with_no_reader_the_oldest_events_go_and_who_wants_them_is_told():
    async def run():
        log = EventLog(max_bytes=3)
        await fill(log, 5)
        assert await take(log, 3, after=1) == [b"2", b"3", b"4"]
        with pytest.raises(EventsGoneError, match="up to 1 are gone"):
            await take(log, 1)

    asyncio.run(run())


def test_a_slow_reader_holds_the_writer_up_and_loses_nothing():
    async def run():
        log = EventLog(max_bytes=3)
        async with aclosing(log.read()) as events:
            writer = asyncio.create_task(fill(log, 8))
            found = [await anext(events)]
            await asyncio.sleep(0.01)
            assert not writer.done()
            found += [await anext(events) for _ in range(7)]
            await writer
        assert found == [b"%d" % number for number in range(8)]

    asyncio.run(run())


def test_a_reader_that_leaves_frees_the_writer():
    async def run():
        log = EventLog(max_bytes=3)
        async with aclosing(log.read()) as events:
            writer = asyncio.create_task(fill(log, 8))
            await anext(events)
        await writer
        assert log.last == 7

    asyncio.run(run())
