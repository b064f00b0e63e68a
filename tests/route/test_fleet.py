"""Who waits for a replica: whoever leaves when it is woken leaves its place to the next."""

import asyncio
import time

from zse.route.addresses import read_address
from zse.route.counts import Counts
from zse.route.fleet import Fleet
from zse.route.prompt import NO_PROMPT
from zse.route_options import RouteOptions


def in_fleet(test):
    """Run a coroutine with a fleet of one ready replica that takes one request at a time."""

    async def main():
        options = RouteOptions(max_per_replica=1, max_waiting=8)
        fleet = Fleet(options, Counts(), clock=time.monotonic)
        fleet.set_addresses([read_address("http://10.0.0.1:8000")])
        (replica,) = fleet.replicas
        replica.saw_ready()
        try:
            async with asyncio.timeout(30):
                await test(fleet)
        finally:
            fleet.close()

    asyncio.run(main())


def take(fleet, *, seconds=20.0, tried=()):
    until = time.monotonic() + seconds
    return asyncio.create_task(fleet.take(NO_PROMPT, tried=set(tried), until=until))


async def settled(fleet, num_waiting):
    while fleet.num_waiting != num_waiting:
        await asyncio.sleep(0)


def test_a_request_that_leaves_when_it_is_woken_wakes_the_next_one():
    async def test(fleet):
        lot = await take(fleet)
        first, second = take(fleet), take(fleet)
        await settled(fleet, 2)
        fleet.give_back(lot)  # wakes the first, which has had no turn of the loop yet
        first.cancel()
        assert (await second).member is lot.member
        assert first.cancelled()

    in_fleet(test)


def test_a_request_that_has_tried_the_free_replica_leaves_it_to_the_next_one():
    async def test(fleet):
        lot = await take(fleet)
        first, second = take(fleet, tried=[lot.member.replica.name]), take(fleet)
        await settled(fleet, 2)
        fleet.give_back(lot)
        assert await first is None
        assert (await second).member is lot.member

    in_fleet(test)
