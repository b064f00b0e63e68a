"""Servers that relieve each other at one port, under load: is any request lost?

    python scripts/bench/rolling_restarts.py --restarts 1000 --clients 4

OpenAI's client asks without a pause and without retries, over connections that are kept, for whole
answers and streams in turns; one more client opens a connection for each request. Meanwhile one
server after another takes the port over. An answer counts when all of its tokens have come; what
is refused, cut or not answered at all is lost, as is a server that ends with another code than 0.
Prints a line a minute, and one JSON object as the last line; exit code 1 when anything was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import openai
from machine import machine_facts

from zse.settings import subprocess_environment

SERVER = Path(__file__).parents[2] / "tests" / "serve" / "paced_server.py"
NUM_TOKENS = 12
WHOLE_SECONDS = 60
REPORT_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two requests")
    parser.add_argument("--server", default=str(SERVER), help="script that takes zse's flags")
    options = parser.parse_args()
    report = asyncio.run(restart(options))
    print(json.dumps({"subject": "rolling restarts", **machine_facts(), **report}))
    sys.exit(1 if report["lost"] or report["bad_exits"] else 0)


async def restart(options: argparse.Namespace) -> dict[str, object]:
    """Let servers follow each other under load, and count."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        servers = Servers(options.server, port, Path(folder) / "handover")
        await servers.start_first()
        clients = [
            asyncio.create_task(ask(port, counts, problems, options.pause, keeps=number > 0))
            for number in range(options.clients + 1)
        ]
        began = said = time.monotonic()
        try:
            for _ in range(options.restarts):
                counts["bad_exits"] += await servers.replace() != 0
                counts["restarts"] += 1
                if time.monotonic() - said > REPORT_SECONDS:
                    said = time.monotonic()
                    print(dict(counts), flush=True)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            await servers.stop()
        seconds = round(time.monotonic() - began, 1)
    names = ("restarts", "answered", "lost", "bad_exits")
    return {name: counts[name] for name in names} | {"seconds": seconds, "problems": problems[:8]}


class Servers:
    """Processes that follow each other at one port."""

    def __init__(self, script: str, port: int, path: Path) -> None:
        self._command = [sys.executable, script, "--port", str(port), "--handover", str(path)]
        self._command += ["--log-level", "error", "--step-ms", "5"]
        self._path = path
        # Keys of whoever runs this would keep the clients out.
        self._environment = subprocess_environment(HOME=str(path.parent))
        self._process: asyncio.subprocess.Process | None = None

    async def start_first(self) -> None:
        self._process = await self._start()
        while not self._path.exists():
            await asyncio.sleep(0.05)

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(*self._command, env=self._environment)

    async def replace(self) -> int:
        """Start the next server, and return the exit code of the one that it relieves."""
        before = self._process
        assert before is not None
        self._process = await self._start()
        return await before.wait()

    async def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        await self._process.wait()


async def ask(
    port: int, counts: Counter[str], problems: list[str], pause: float, *, keeps: bool
) -> None:
    """Ask without an end; whole answers and streams take turns."""
    client = client_of(port)
    for number in range(sys.maxsize):
        if not keeps and number:
            await client.close()
            client = client_of(port)
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                text = await (answer(client) if number % 2 else stream(client))
            is_whole = len(text) == NUM_TOKENS
            if not is_whole:
                problems.append(f"an answer of {len(text)} tokens")
        except (openai.OpenAIError, TimeoutError) as error:
            is_whole = False
            problems.append(f"{type(error).__name__}: {error}; {error.__cause__!r}")
        if not is_whole:
            print(f"lost: {problems[-1]}", file=sys.stderr, flush=True)
        counts["answered" if is_whole else "lost"] += 1
        await asyncio.sleep(pause)


def client_of(port: int) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{port}/v1"
    # Else it gives up after 5 s of connecting, which a busy machine takes to run it at all.
    return openai.AsyncOpenAI(
        base_url=url, api_key="unused", max_retries=0, timeout=float(WHOLE_SECONDS)
    )


async def answer(client: openai.AsyncOpenAI) -> str:
    whole = await client.completions.create(model="default", prompt="x", max_tokens=NUM_TOKENS)
    return whole.choices[0].text


async def stream(client: openai.AsyncOpenAI) -> str:
    pieces = await client.completions.create(
        model="default", prompt="x", max_tokens=NUM_TOKENS, stream=True
    )
    return "".join([piece.choices[0].text async for piece in pieces if piece.choices])


if __name__ == "__main__":
    main()
