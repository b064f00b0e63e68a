"""A real server whose models come and go: signals in the midst of it."""

import asyncio
import signal

import httpx
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def start(start_command, folder):
    """Start servers of the folder's models."""

    def started(*flags):
        command = ["-m", "zse.serve", "--models", str(folder), "--max-resident", "1"]
        options = ["--device", "cpu", "--max-context", "512", "--port", "0", "--model-turn", "0"]
        child = start_command(*command, *options, *flags)
        child.wait_for_line("ready")
        return child

    return started


async def ask(url, name, **fields):
    body = {"prompt": "Hello", "model": name, "max_tokens": 8, "temperature": 0, **fields}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        return await client.post("/v1/completions", json={"ignore_eos": True, **body})


def test_who_waits_for_a_model_when_the_server_ends_is_answered_first(start, expected):
    child = start()

    async def end_beside_a_swap():
        long = asyncio.create_task(ask(child.url, "a", max_tokens=500, n=8))
        while not await asyncio.to_thread(child.gauge, "zse_in_flight"):
            assert not long.done()
        waiting = [asyncio.create_task(ask(child.url, name)) for name in "bc"]
        while await asyncio.to_thread(child.gauge, "zse_models_waited_for") < 2:
            assert not long.done()
        child.process.send_signal(signal.SIGTERM)
        return await asyncio.gather(long, *waiting)

    long, *others = asyncio.run(end_beside_a_swap())
    assert long.json()["usage"]["completion_tokens"] == 8 * 500
    said = [one.json()["choices"][0]["text"] for one in others]
    assert said == [expected["b"], expected["c"]]
    assert child.process.wait(60) == 0


def test_a_server_that_is_killed_in_a_swap_leaves_files_that_serve(start, folder, expected):
    before = sorted(path.name for path in folder.iterdir())
    child = start()

    async def kill_within_swaps():
        asking = [asyncio.create_task(ask(child.url, name)) for name in "bcdefgh"]
        await asyncio.to_thread(child.wait_for_line, "model brought")
        child.process.kill()
        return await asyncio.gather(*asking, return_exceptions=True)

    asyncio.run(kill_within_swaps())
    child.process.wait(60)
    assert sorted(path.name for path in folder.iterdir()) == before
    again = start()
    for name in "bh":
        answer = asyncio.run(ask(again.url, name))
        assert answer.json()["choices"][0]["text"] == expected[name]


def test_a_server_of_one_model_has_no_fleet_until_it_sleeps(start_command, model_files):
    flags = ["--device", "cpu", "--max-context", "512", "--port", "0"]
    child = start_command("-m", "zse.serve", str(model_files["a"]), *flags)
    child.wait_for_line("ready")
    assert asyncio.run(ask(child.url, "a")).status_code == 200
    assert "zse_models_resident" not in child.http.get("/metrics").text
    assert child.http.post("/sleep").status_code == 200
    assert asyncio.run(ask(child.url, "a")).status_code == 503
    assert child.gauge("zse_models_resident") == 0
    assert child.http.post("/wake_up").status_code == 200
    assert asyncio.run(ask(child.url, "a")).status_code == 200
