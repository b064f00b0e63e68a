"""Real processes: `zse route` before two real servers of the built-in model, and their odd days."""

import asyncio
import json
import subprocess
import sys
import time

import httpx
import pytest
from started_server import StartedServer

FLAGS = ("--device", "cpu", "--threads", "1", "--max-context", "512")
KEY = "a-key-of-these-tests-0123456789"
OPERATOR = "an-operators-key-0123456789abcdef"
SEEN = {"authorization": f"Bearer {KEY}"}


def serve(port=0):
    command = [sys.executable, "-m", "zse.serve", "tiny", "--port", str(port), *FLAGS]
    return StartedServer(command, {"ZSE_API_KEYS": f"{KEY},admin:{OPERATOR}"})


@pytest.fixture(scope="module")
def replicas():
    made = [serve(), serve()]
    yield made
    for each in made:
        each.stop()


@pytest.fixture(scope="module")
def router(replicas):
    words = [word for each in replicas for word in ("--replica", each.url)]
    flags = ["--port", "0", "--look-seconds", "0.1", "--drain-seconds", "5"]
    flags += ["--dead-after", "60"]  # a replica on a busy machine may be silent for long
    command = [sys.executable, "-m", "zse", "route", *words, *flags]
    made = StartedServer(command, {"ZSE_ROUTE_REPLICA_KEY": OPERATOR})
    yield made
    assert made.stop() == 0


@pytest.fixture
def client(router):
    with httpx.Client(base_url=router.url, timeout=60, headers=SEEN) as client:
        deadline = time.monotonic() + 60
        while client.get("/health/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield client


def body(text="Hello", **fields):
    return {"prompt": text, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)


def states(client):
    return {each["replica"]: each for each in client.get("/route/replicas").json()["replicas"]}


def test_the_answer_is_a_replicas_own_streamed_or_not(client, replicas):
    direct = httpx.post(f"{replicas[0].url}/v1/completions", json=body(), headers=SEEN, timeout=60)
    routed = client.post("/v1/completions", json=body())
    assert routed.json()["choices"] == direct.json()["choices"]
    streamed = client.post("/v1/completions", json=body(stream=True)).text
    events = [line[6:] for line in streamed.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    text = "".join(json.loads(each)["choices"][0]["text"] for each in events)
    assert text == direct.json()["choices"][0]["text"]


def test_who_may_ask_is_the_replicas_matter(client):
    refused = client.post("/v1/completions", json=body(), headers={"authorization": "Bearer no"})
    assert refused.status_code == 401


def test_a_prompt_that_is_known_goes_where_it_is_known_and_is_reused(client):
    text = "the quick brown fox jumps over the lazy dog. " * 8
    client.post("/v1/completions", json=body(text))
    cached = [
        client.post("/v1/completions", json=body(text + str(number))).json()["usage"]
        for number in range(6)
    ]
    assert all(each["prompt_tokens_details"]["cached_tokens"] >= 32 for each in cached)


def test_how_busy_they_are_is_what_replicas_say(client, replicas):
    wait_until(lambda: {each["state"] for each in states(client).values()} == {"ready"})
    load = httpx.get(f"{replicas[0].url}/load", timeout=60).json()  # from this machine
    assert (load["running"], load["waiting"], load["sleep_level"]) == (0, 0, 0)


def test_a_client_that_leaves_frees_its_place_at_the_replica(client):
    with client.stream("POST", "/v1/completions", json=body(max_tokens=400, stream=True)) as found:
        next(found.iter_bytes())
    wait_until(lambda: not sum(each["running"] for each in states(client).values()))


def test_no_answer_is_lost_while_a_replica_is_stopped_killed_and_started_again(client, replicas):
    """SIGTERM, then kill -9 of the same replica, under requests that follow each other."""

    async def ask_all(seconds):
        begun, answers = time.monotonic(), []

        async def ask(number):
            async with httpx.AsyncClient(base_url=client.base_url, timeout=60, headers=SEEN) as own:
                while time.monotonic() - begun < seconds:
                    asked = await own.post("/v1/completions", json=body(f"Hi {number}"))
                    answers.append(asked.status_code)

        await asyncio.gather(*[ask(number) for number in range(4)])
        return answers

    async def stop_and_start():
        running = asyncio.create_task(ask_all(3.0))
        await asyncio.sleep(0.7)
        code = await asyncio.to_thread(replicas[0].stop)
        return code, await running

    port = int(replicas[0].url.rpartition(":")[2])
    code, answers = asyncio.run(stop_and_start())
    assert (code, set(answers)) == (0, {200})
    replicas[0] = serve(port)
    wait_until(lambda: {each["state"] for each in states(client).values()} == {"ready"})
    replicas[0]._process.kill()  # nothing of it is in flight
    replicas[0]._process.wait()  # what it still took while it died would be lost
    assert {client.post("/v1/completions", json=body()).status_code for _ in range(8)} == {200}


def test_a_router_that_is_told_nothing_says_what_it_needs():
    done = subprocess.run(
        [sys.executable, "-m", "zse", "route"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--replica http://HOST:PORT" in done.stderr
