"""Requests that wait for the model of a server that starts."""

import asyncio
import threading
from types import SimpleNamespace

from zse.serve.held_requests import HeldRequests


def test_all_go_on_the_moment_that_another_thread_has_put_the_model():
    async def run():
        state = SimpleNamespace(is_starting=True)
        held = HeldRequests(state)
        waiting = [asyncio.create_task(held.wait(3600)) for _ in range(100)]
        await asyncio.sleep(0)
        assert held.num_waiting == 100

        def put():
            state.is_starting = False
            held.release()

        thread = threading.Thread(target=put)
        thread.start()
        await asyncio.wait_for(asyncio.gather(*waiting), 30)
        thread.join()
        assert held.num_waiting == 0

    asyncio.run(run())


def test_a_start_that_fails_ends_the_wait_without_a_word():
    async def run():
        state = SimpleNamespace(is_starting=True)
        waiting = asyncio.create_task(HeldRequests(state).wait(3600))
        await asyncio.sleep(0.01)
        state.is_starting = False
        await asyncio.wait_for(waiting, 30)

    asyncio.run(run())


def test_the_wait_ends_after_the_time_that_was_allowed_and_before_a_start_that_has_ended():
    async def run():
        state = SimpleNamespace(is_starting=True)
        await asyncio.wait_for(HeldRequests(state).wait(0.02), 30)
        state.is_starting = False
        await asyncio.wait_for(HeldRequests(state).wait(3600), 30)

    asyncio.run(run())


def test_a_loop_that_has_ended_has_nobody_to_release():
    async def make():
        return HeldRequests(SimpleNamespace(is_starting=True))

    asyncio.run(make()).release()


def test_the_longest_of_those_who_wait_says_how_long_the_first_prompt_may_be():
    async def run():
        state = SimpleNamespace(is_starting=True)
        held = HeldRequests(state)
        assert held.most_tokens == 0
        waiting = [asyncio.create_task(held.wait(3600, size)) for size in (60, 12_000, 0)]
        await asyncio.sleep(0)
        assert held.most_tokens == 2000
        state.is_starting = False
        held.release()
        await asyncio.wait_for(asyncio.gather(*waiting), 30)

    asyncio.run(run())
