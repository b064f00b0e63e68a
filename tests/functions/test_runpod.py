"""The queue worker: against a started server, and in the SDK's own local API server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("runpod")

pytestmark = pytest.mark.slow

HANDLER = Path(__file__).parents[2] / "functions" / "runpod" / "handler.py"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def worker(free_port):
    """The worker with its server, as RunPod's SDK runs it on a developer's machine."""
    ports = {"api": free_port(), "server": free_port()}
    environment = {
        **os.environ,
        "ZSE_MODEL": "tiny",
        "ZSE_DEVICE": "cpu",
        "ZSE_PORT": str(ports["server"]),
        "PYTHONPATH": str(HANDLER.parents[2]),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(HANDLER), "--rp_serve_api", "--rp_api_port", str(ports["api"])]
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://localhost:{ports['api']}"
    wait_for(f"{url}/docs", process)
    yield {"url": url, "server": f"http://127.0.0.1:{ports['server']}"}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(url, process):
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None, "the worker ended"
        assert time.monotonic() < deadline, f"{url} does not answer"
        try:
            httpx.get(url)
            return
        except httpx.TransportError:
            time.sleep(0.05)


@pytest.fixture(scope="module")
def handler_module(worker, load_entry_point):
    module = load_entry_point("runpod/handler.py")
    module.BASE_URL = worker["server"]
    return module


def run_handler(module, job_input):
    async def collect():
        return [chunk async for chunk in module.handler({"id": "1", "input": job_input})]

    return asyncio.run(collect())


def test_runsync_answers_with_the_whole_completion(worker):
    job = {"input": {"messages": QUESTION, "temperature": 0}}
    answer = httpx.post(f"{worker['url']}/runsync", json=job, timeout=60).json()
    assert answer["status"] == "COMPLETED"
    (completion,) = answer["output"]
    assert "Paris" in completion["choices"][0]["message"]["content"]


def test_a_stream_comes_as_server_sent_events(worker):
    job = {"input": {"messages": QUESTION, "temperature": 0, "stream": True}}
    identity = httpx.post(f"{worker['url']}/run", json=job, timeout=60).json()["id"]
    answer = httpx.post(f"{worker['url']}/stream/{identity}", timeout=60).json()
    events = "".join(chunk["output"] for chunk in answer["stream"]).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert "Paris" in text


def test_no_chunk_holds_half_an_event(handler_module):
    chunks = run_handler(handler_module, {"messages": QUESTION, "stream": True})
    assert chunks
    assert all(chunk.endswith("\n\n") for chunk in chunks)


def test_the_platforms_openai_routes_are_passed_on(handler_module):
    (models,) = run_handler(handler_module, {"openai_route": "/v1/models", "openai_input": None})
    assert models["object"] == "list"
    job = {"openai_route": "/v1/completions", "openai_input": {"prompt": "a", "max_tokens": 2}}
    (text,) = run_handler(handler_module, job)
    assert text["object"] == "text_completion"
    (plain,) = run_handler(handler_module, {"prompt": "a", "max_tokens": 2})
    assert plain["object"] == "text_completion"


def test_a_refusal_fails_the_job_with_the_servers_words(handler_module):
    (chunk,) = run_handler(handler_module, {"messages": QUESTION, "temperature": 9})
    assert "temperature" in json.loads(chunk["error"])["message"]


def test_jobs_run_side_by_side(handler_module):
    async def together():
        async def one():
            job = {"id": "1", "input": {"messages": QUESTION, "max_tokens": 4}}
            return [chunk async for chunk in handler_module.handler(job)]

        return await asyncio.gather(*(one() for _ in range(4)))

    assert all(len(chunks) == 1 for chunks in asyncio.run(together()))


def test_the_fitness_check_returns_once_the_model_is_loaded(handler_module):
    asyncio.run(handler_module.server_is_ready())
