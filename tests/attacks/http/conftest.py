"""A server that is attacked: a process of its own, whose memory and room are looked at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from zse.settings import subprocess_environment

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "serve" / "scripted_server.py"
PAGE_KIB = 4
RESTING_LOOKS = 8
SECONDS = 60
"""How long anything may take on a busy machine: nothing of it is a measurement."""


class Attacked:
    """A scripted server, and what a client needs to attack it."""

    def __init__(self, *flags: str, **environment: str) -> None:
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *flags],
            stderr=self._log,
            env=subprocess_environment(
                PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", ZSE_LOG_FORMAT="json", **environment
            ),
        )
        deadline = time.monotonic() + SECONDS
        while not any(line["message"] == "ready" for line in self.lines()):
            assert time.monotonic() < deadline, self.text()
            assert self.process.poll() is None, self.text()
            time.sleep(0.05)
        self.port = next(line["port"] for line in self.lines() if "port" in line)

    def text(self) -> str:
        return Path(self._log.name).read_text()

    def lines(self) -> list[dict]:
        """Return the log; a line that is being written is not there yet."""
        found = []
        for line in self.text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def rss_kib(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * PAGE_KIB

    def num_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def connect(self, **options):
        return await asyncio.open_connection("127.0.0.1", self.port, **options)

    async def hang_up(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            writer.close()
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def exchange(self, data: bytes, seconds: float = SECONDS) -> bytes:
        """Send bytes and return all that comes back until the server closes."""
        reader, writer = await self.connect()
        answer = b""
        try:
            writer.write(data)
            async with asyncio.timeout(seconds):
                while piece := await reader.read(65536):
                    answer += piece
        except ConnectionError:
            pass  # it was cut off
        finally:
            await self.hang_up(writer)
        return answer

    async def ask(self, method: str, path: str, body: object = None, **headers: str):
        """Return status and body of an ordinary request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        named = {"host": "localhost", "connection": "close", "content-length": str(len(data))}
        named |= {"content-type": "application/json"} if data else {}
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in (named | headers).items()]
        answer = await self.exchange("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head, _, rest = answer.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head else 0), rest

    async def check_alive(self) -> None:
        status, _ = await self.ask("GET", "/health/live")
        assert status == 200

    async def check_answers(self) -> None:
        """Liveness and an ordinary question are answered."""
        await self.check_alive()
        body = {"messages": [{"role": "user", "content": "say:ok"}]}
        status, answer = await self.ask("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        assert json.loads(answer)["choices"][0]["message"]["content"] == "ok"

    async def gauge(self, name: str) -> float:
        _, text = await self.ask("GET", "/metrics")
        found = re.search(rf"^{name}(?:{{[^}}]*}})? ([\d.]+)", text.decode(), re.MULTILINE)
        assert found, name
        return float(found[1])

    async def wait_until_idle(self) -> None:
        """Wait until nothing is admitted, nothing is generated and no connection is open."""
        async with asyncio.timeout(SECONDS):
            for name in ("zse_in_flight", "zse_num_requests_running"):
                while await self.gauge(name):
                    await asyncio.sleep(0.05)
            while self.num_files() > self.num_files_idle:
                await asyncio.sleep(0.05)

    async def rest(self) -> None:
        """Wait until it has done what it does behind its start: until it uses no processor."""
        path, used = Path(f"/proc/{self.process.pid}/stat"), [0]
        async with asyncio.timeout(SECONDS):
            while len(used) < RESTING_LOOKS or used[-1] - used[-RESTING_LOOKS] > 1:
                await asyncio.sleep(0.2)
                used.append(sum(map(int, path.read_text().rpartition(") ")[2].split()[11:13])))

    async def settle(self) -> None:
        """Note what the server holds when it has done everything once."""
        await self.check_answers()
        await self.gauge("zse_in_flight")
        await asyncio.sleep(0.3)
        self.num_files_idle = self.num_files()

    def check_log(self) -> None:
        """Nothing happened that nobody foresaw."""
        text = self.text()
        for trace in ("Traceback", '"exception"', "Fatal error", "never retrieved"):
            assert trace not in text, text[text.index(trace) - 500 :][:2000]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@pytest.fixture
def attacked():
    """Start servers to attack, with flags and settings; at the end each is alive and clean."""
    servers = []

    def start(*flags: str, **environment: str) -> Attacked:
        servers.append(Attacked(*flags, **environment))
        asyncio.run(servers[-1].settle())
        return servers[-1]

    yield start
    try:
        for server in servers:
            asyncio.run(server.check_answers())
            asyncio.run(server.wait_until_idle())
            server.check_log()
    finally:
        for server in servers:
            server.close()
