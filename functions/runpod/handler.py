"""RunPod queue worker: a job becomes a request to the server in this container, its answer streams.

    python handler.py                  on RunPod
    python handler.py --rp_serve_api   here, with the SDK's own test server

A job's input is an OpenAI body (with "messages" or "prompt"), or {"openai_route", "openai_input"}.
"""

import asyncio
import json
import os
import subprocess
import sys

import httpx

from zse.settings import load_settings, subprocess_environment

CONCURRENCY = 16  # jobs at the same time; the server batches them
COMMAND = [sys.executable, "-m", "zse.serve", "--host", "127.0.0.1"]
BASE_URL = f"http://127.0.0.1:{load_settings().serve.port}"
READY_SECONDS = 0.02  # between two questions whether the model is loaded


def start_server():
    """Start loading before the SDK is imported, which takes two seconds."""
    # RunPod has asked for its key; jobs come from nobody else.
    return subprocess.Popen(COMMAND, env=subprocess_environment(ZSE_API_KEYS=""))


def to_request(job_input):
    """Return method, path and body of the request that a job stands for."""
    if route := job_input.get("openai_route"):
        body = job_input.get("openai_input")
        return ("POST" if body else "GET"), "/v1/" + route.removeprefix("/v1").lstrip("/"), body
    chat = "messages" in job_input
    return "POST", "/v1/chat/completions" if chat else "/v1/completions", job_input


async def wait_until_ready(client):
    """Return when the model is loaded; end the worker when the server is gone."""
    while True:
        try:
            if (await client.get("/health/ready")).is_success:
                return
        except httpx.TransportError:
            if server is not None and server.poll() is not None:
                os._exit(server.returncode or 1)  # RunPod gives the job to another worker
        await asyncio.sleep(READY_SECONDS)


async def handler(job):
    """Yield the whole answer, or server-sent events as they come."""
    async with httpx.AsyncClient(base_url=BASE_URL, timeout=None) as client:
        await wait_until_ready(client)
        method, path, body = to_request(job["input"])
        async with client.stream(method, path, json=body) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                answer = json.loads(await response.aread())
                # A chunk with this key makes the job FAILED.
                yield answer if response.is_success else {"error": json.dumps(answer["error"])}
                return
            buffer = ""
            async for text in response.aiter_text():
                whole, mark, buffer = (buffer + text).rpartition("\n\n")
                if mark:
                    yield whole + mark  # never half an event


async def server_is_ready():
    """Fitness check: a worker takes jobs only when its model is loaded."""
    async with httpx.AsyncClient(base_url=BASE_URL, timeout=None) as client:
        await wait_until_ready(client)


server = start_server() if __name__ == "__main__" else None

if __name__ == "__main__":
    import runpod

    runpod.serverless.register_fitness_check(server_is_ready)
    runpod.serverless.start(
        {
            "handler": handler,
            "concurrency_modifier": lambda _: CONCURRENCY,
            "return_aggregate_stream": True,
        }
    )
