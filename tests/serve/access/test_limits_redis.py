"""Limits that replicas share, counted by a real Redis."""

import asyncio
import socket
import subprocess
import time

import pytest
from service_packages import find_command

from zse.serve.access import limits as limits_module
from zse.serve.access.caller import Caller
from zse.serve.access.limits import Limits, RateLimitError

pytestmark = pytest.mark.system
CALLER = Caller(key_id="a1", scope="inference", requests_per_minute=10, tokens_per_minute=1000)


class RedisServer:
    def __init__(self, folder) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self.start()

    def start(self) -> None:
        words = f"--port {self.port} --bind 127.0.0.1 --save '' --dir {self._folder}".replace(
            "'", ""
        )
        self.process = subprocess.Popen(
            [find_command("redis-server"), *words.split(" ")], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def redis_server(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def make_limits(redis_server, runner, monkeypatch):
    """Makes what a replica counts with, in the middle of a minute that does not pass."""
    monkeypatch.setattr(limits_module, "REDIS_SECONDS", 60)  # it may be late on a busy machine
    made = []

    def make():
        made.append(Limits(redis_server.url, now=lambda: 1_800_000_030.0))
        return made[-1]

    yield make
    for limits in made:
        runner.run(limits.close())


async def admitted(limits, count):
    found = 0
    for _ in range(count):
        try:
            await limits.admit(CALLER)
        except RateLimitError:
            continue
        found += 1
    return found


def test_two_replicas_count_requests_together(redis_server, make_limits, runner):
    one, two = make_limits(), make_limits()

    async def ask():
        return sum(await asyncio.gather(admitted(one, 8), admitted(two, 8)))

    assert runner.run(ask()) == 10


def test_two_replicas_count_tokens_together_and_give_back(redis_server, make_limits, runner):
    one, two = make_limits(), make_limits()

    async def ask():
        charge = await one.charge(CALLER, prompt_tokens=10, most_tokens=800)
        with pytest.raises(RateLimitError):
            await two.charge(CALLER, prompt_tokens=10, most_tokens=300)
        one.settle(charge, 200)
        await asyncio.gather(*one._settling)
        assert (await two.use_of(CALLER))["tokens"].remaining == 800
        await two.charge(CALLER, prompt_tokens=10, most_tokens=300)
        assert (await one.use_of(CALLER))["tokens"].remaining == 500

    runner.run(ask())


def test_what_is_counted_goes_with_its_window(redis_server, make_limits, runner):
    limits = make_limits()

    async def ask():
        await limits.admit(CALLER)
        await limits.charge(CALLER, prompt_tokens=1, most_tokens=2)
        client = limits._shared.storage.bridge.get_connection()
        keys = await client.keys("*")
        assert len(keys) == 2
        return [await client.ttl(key) for key in keys]

    assert all(0 < seconds <= 120 for seconds in runner.run(ask()))


def test_a_redis_that_dies_leaves_each_replica_with_its_own_count(
    redis_server, make_limits, runner, caplog
):
    limits = make_limits()

    async def ask():
        before = await admitted(limits, 5)
        redis_server.stop()
        return before, await admitted(limits, 20)

    assert runner.run(ask()) == (5, 10)
    assert "counted by this server alone" in caplog.text
