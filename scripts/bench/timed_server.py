"""Servers to start and to ask: ours and llama-server, the same way, with the product's own meter.

One prompt of token ids, over HTTP, on loopback; then how fast the server decodes.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from zse.deploy.measure.start import HOST, Dialogue, Start, Subject, measure_start  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

START_LIMIT_SECONDS = 300
PROMPT_TOKENS = 32
DECODE_PROMPT_TOKENS = 128
DECODE_TOKENS = 256
BOOT = (
    "import sys; sys.path[:0]={paths!r}; sys.argv[0]='zse-serve'; "
    "from zse.serve.__main__ import main; sys.exit(main())"
)


@dataclass(frozen=True, kw_only=True)
class TimedServer:
    """A server that completes prompts of token ids."""

    name: str
    command: Callable[[int], list[str]]
    """Port -> command."""
    live_path: str = ""
    ready_path: str
    path: str
    """Takes completions."""
    body: Callable[[list[int], int, bool], dict[str, object]]
    """Prompt ids, number of tokens, streamed -> request body."""
    prompt_tokens: int = PROMPT_TOKENS
    """Of the first prompt."""
    asks: Literal["ready", "at-once"] = "ready"
    """See ``zse.deploy.measure.start.Dialogue``."""

    def subject(self, vocabulary: int) -> Subject:
        """Return what the meter starts and asks for one token."""
        return Subject(
            name=self.name,
            how="process",
            command=self.command,
            dialogue=Dialogue(
                live_path=self.live_path,
                ready_path=self.ready_path,
                path=self.path,
                question=self.body(prompt_ids(self.prompt_tokens, vocabulary, 0), 1, True),
                brings_text=bool,  # the first event is the token
                asks=self.asks,
            ),
            is_told_when=True,
        )


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Several starts of a server, and what its last one was used for."""

    starts: list[Start]
    decode_tokens_per_second: float
    """Between the first and the last of 256 tokens, over HTTP."""
    gpu_bytes: int
    """Growth of the GPU's used memory; 0 without a GPU."""


def zse_server(model: Path | str, *, device: str, arguments: Sequence[str] = ()) -> TimedServer:
    """Return our server, started the way an image starts it: no site, no user folder."""
    paths = [str(ROOT), *(path for path in sys.path if path and path != str(ROOT))]
    command = [sys.executable, "-I", "-S", "-c", BOOT.format(paths=paths), str(model)]
    command += ["--device", device, *arguments]
    return TimedServer(
        name="zse",
        command=lambda port: [*command, "--port", str(port)],
        live_path="/health/live",
        ready_path="/health/ready",
        path="/v1/completions",
        body=_openai_body,
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


def measure_starts(
    server: TimedServer, *, repeat: int, vocabulary: int, settle_seconds: float = 0.0
) -> Starts:
    """Start a server once to warm up what a first start caches, then so many times.

    Args:
        server: What to start.
        repeat: Starts that count; the last one also decodes.
        vocabulary: Prompts hold ids below this.
        settle_seconds: How long the first one lives, so that it writes what later ones read.

    Raises:
        ColdStartError: It ended, or did not answer in time.
    """
    subject = server.subject(vocabulary)
    speeds: list[float] = []
    held: list[int] = []

    def decode(port: int) -> None:
        speeds.append(decode_speed(port, server, vocabulary))

    starts = []
    for index in range(repeat + 1):
        used_before = used_gpu_bytes()

        def use(
            port: int,
            is_first: bool = index == 0,
            is_last: bool = index == repeat,
            before: int = used_before,
        ) -> None:
            if is_last:
                decode(port)
            elif is_first:
                time.sleep(settle_seconds)
            held.append(used_gpu_bytes() - before)

        starts.append(measure_start(subject, timeout_seconds=START_LIMIT_SECONDS, then=use))
    return Starts(
        starts=starts[1:], decode_tokens_per_second=speeds[0], gpu_bytes=max(0, *held[1:])
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and most, in ms as they come."""
    found = {"p50": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 1) for name, value in found.items()}


def decode_speed(
    port: int,
    server: TimedServer,
    vocabulary: int,
    *,
    tokens: int = DECODE_TOKENS,
    num_pairs: int = 3,
) -> float:
    """Return tokens per second: what ``tokens`` more cost, the median of some differences."""
    rates = []
    for index in range(1, num_pairs + 2):  # the first pair warms up what was not needed before
        short = prompt_ids(DECODE_PROMPT_TOKENS, vocabulary, 2 * index)
        long = prompt_ids(DECODE_PROMPT_TOKENS, vocabulary, 2 * index + 1)
        first = complete(port, server, short, 1)
        whole = complete(port, server, long, 1 + tokens)
        rates.append(tokens / (whole - first))
    return statistics.median(rates[1:])


def complete(port: int, server: TimedServer, prompt: list[int], tokens: int) -> float:
    """Ask for so many tokens, not streamed; return the seconds that it took."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection(HOST, port, timeout=START_LIMIT_SECONDS)
    try:
        body = json.dumps(server.body(prompt, tokens, False))
        connection.request("POST", server.path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{server.path}: {response.status} {text[:500]!r}")
        return time.perf_counter() - began
    finally:
        connection.close()


def prompt_ids(count: int, vocabulary: int, variant: int) -> list[int]:
    """Return a prompt that shares no prefix with those of other variants."""
    return [(300 + 977 * variant + 31 * index) % vocabulary for index in range(count)]


def used_gpu_bytes() -> int:
    """Return the memory in use on the first GPU, by everybody; 0 where it cannot be asked."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        return int(answer) << 20
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0
