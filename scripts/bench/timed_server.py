"""A server process with a stopwatch: process start, liveness, first streamed token, decode speed.

Ours and llama-server are asked the same way: one prompt of token ids, over HTTP, on loopback.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
POLL_SECONDS = 0.002
START_LIMIT_SECONDS = 300
PROMPT_TOKENS = 32
DECODE_PROMPT_TOKENS = 128
DECODE_TOKENS = 256
BOOT = (
    "import runpy,sys; sys.path[:0]={paths!r}; sys.argv[0]='zse-serve'; "
    "runpy.run_module('zse.serve', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A server to start."""

    name: str
    command: Sequence[str]
    """``{port}`` stands for the port."""
    ready_path: str
    """Answers 200 once requests are served."""
    path: str
    """Takes completions."""
    body: Callable[[list[int], int, bool], dict[str, object]]
    """Prompt ids, number of tokens, streamed -> request body."""
    live_path: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    uses_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start, in seconds from process start, and what was seen of the process."""

    seconds: dict[str, float]
    """``live`` where there is such a path, ``ready``, ``first_token``."""
    ledger_ms: dict[str, float]
    """The server's own: when each phase ended, in ms since its process began."""
    decode_tokens_per_second: float
    """Between the first and the last of 256 tokens, over HTTP; 0 when not asked for."""
    gpu_bytes: int
    """Growth of the GPU's used memory; 0 without a GPU."""


def zse_subject(model: Path, *, device: str, arguments: Sequence[str] = ()) -> Subject:
    """Return our server, started the way an image starts it: no site, no user folder."""
    paths = [str(ROOT), *(path for path in sys.path if path and path != str(ROOT))]
    return Subject(
        name="zse",
        command=[
            *(sys.executable, "-I", "-S", "-c", BOOT.format(paths=paths), str(model)),
            *("--port", "{port}", "--device", device, *arguments),
        ],
        live_path="/health/live",
        ready_path="/health/ready",
        path="/v1/completions",
        body=_openai_body,
        uses_gpu=device != "cpu",
    )


def _openai_body(prompt: list[int], tokens: int, streamed: bool) -> dict[str, object]:
    return {
        "model": "default",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": streamed,
    }


def start_once(subject: Subject, *, vocabulary: int, decode: bool) -> Start:
    """Start the server, ask it, stop it.

    Args:
        subject: What to start.
        vocabulary: Prompts hold ids below this.
        decode: Also measure how fast it decodes.
    """
    used_before = used_gpu_bytes() if subject.uses_gpu else 0
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [part.replace("{port}", str(port)) for part in subject.command]
    with tempfile.TemporaryFile() as log:
        environment = os.environ | subject.environment
        environment["ZSE_START_TIME_NS"] = str(time.time_ns())
        began = time.perf_counter()
        server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, env=environment, cwd=ROOT
        )
        try:
            seconds = {}
            if subject.live_path:
                seconds["live"] = wait_for(server, port, subject.live_path, began, log)
            seconds["ready"] = wait_for(server, port, subject.ready_path, began, log)
            ask(port, subject, prompt_ids(PROMPT_TOKENS, vocabulary, 0), 1, streamed=True)
            seconds["first_token"] = time.perf_counter() - began
            speed = decode_speed(port, subject, vocabulary) if decode else 0.0
            used_after = used_gpu_bytes() if subject.uses_gpu else 0
        finally:
            stop(server)
        log.seek(0)
        ledger = ledger_of(log.read())
    return Start(
        seconds=seconds,
        ledger_ms=ledger,
        decode_tokens_per_second=speed,
        gpu_bytes=max(used_after - used_before, 0),
    )


def wait_for(server: subprocess.Popen, port: int, path: str, began: float, log: object) -> float:
    """Return the seconds until a path answers 200."""
    while time.perf_counter() - began < START_LIMIT_SECONDS:
        connection = http.client.HTTPConnection(HOST, port, timeout=10)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return time.perf_counter() - began
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        if server.poll() is not None:
            log.seek(0)
            words = log.read()[-3000:].decode(errors="replace")
            raise RuntimeError(f"the server ended with code {server.returncode}:\n{words}")
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"{path} did not answer in {START_LIMIT_SECONDS} s")


def ask(port: int, subject: Subject, prompt: list[int], tokens: int, *, streamed: bool) -> float:
    """Ask for a completion; return the seconds until its first event, or until all of it."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection(HOST, port, timeout=START_LIMIT_SECONDS)
    try:
        body = json.dumps(subject.body(prompt, tokens, streamed))
        connection.request("POST", subject.path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{subject.path}: {response.status} {response.read()[:500]!r}")
        if streamed:
            line = response.readline()
            while line and not line.startswith(b"data: {"):
                line = response.readline()
            seconds = time.perf_counter() - began
            if not line:
                raise RuntimeError("the stream ended without an event")
            response.read()
            return seconds
        response.read()
        return time.perf_counter() - began
    finally:
        connection.close()


def decode_speed(port: int, subject: Subject, vocabulary: int) -> float:
    """Return tokens per second: what 256 more tokens cost, the median of three differences."""
    rates = []
    for index in range(1, 5):  # the first pair warms up what was not needed before
        short = prompt_ids(DECODE_PROMPT_TOKENS, vocabulary, 2 * index)
        long = prompt_ids(DECODE_PROMPT_TOKENS, vocabulary, 2 * index + 1)
        first = ask(port, subject, short, 1, streamed=False)
        whole = ask(port, subject, long, 1 + DECODE_TOKENS, streamed=False)
        rates.append(DECODE_TOKENS / (whole - first))
    return statistics.median(rates[1:])


def prompt_ids(count: int, vocabulary: int, variant: int) -> list[int]:
    """Return a prompt that shares no prefix with those of other variants."""
    return [(300 + 977 * variant + 31 * index) % vocabulary for index in range(count)]


def stop(server: subprocess.Popen) -> None:
    """End a server: politely, then not."""
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def ledger_of(log: bytes) -> dict[str, float]:
    """Return when each phase ended, from the server's ``ready`` line."""
    for line in log.splitlines():
        if b'"cold_start_ms"' in line:
            phases = json.loads(line)["cold_start_ms"]
            return {name: phase["end_ms"] for name, phase in phases.items()}
    return {}


def used_gpu_bytes() -> int:
    """Return the memory in use on the first GPU, by everybody; 0 where it cannot be asked."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        return int(answer) << 20
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0
