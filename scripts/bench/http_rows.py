"""Rows of a server's throughput over HTTP, prompts included, by clients in processes of their own.

    python scripts/bench/http_rows.py MODEL.zse --rows 8x512x16,128x512x128,256x1000x1000
    python scripts/bench/http_rows.py MODEL.zse --mixed 128 --requests 384

A row ``128x512x128`` is 128 streams at once, each of about 512 tokens in (as many words as make
them) and 128 out, with texts that share nothing. ``--mixed`` keeps so many streams open, whose
lengths differ: 32 to 2,000 tokens in and 16 to 256 tokens out, log-uniform; its time between tokens
is what counts. The clients share no code with the server. Tokens are drawn, at temperature 1: of
random weights the likeliest one may have no text. ``--trace FILE`` has the server write a line for
each step, of which a second table tells where its time went. Prints a table, and one JSON object as
the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine_runs import add_device_arguments, milliseconds, quantile
from http_runs import HttpServer
from load_plan import WORDS
from machine import machine_facts
from step_table import HEADING as STEPS_HEADING
from step_table import read_steps, table_of

MAX_LINE_BYTES = 1 << 20
MIXED_INPUT, MIXED_OUTPUT = (32, 2000), (16, 256)


@dataclass(kw_only=True)
class Answer:
    """What became of one request, in seconds of the machine's monotonic clock."""

    sent: float
    times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


@dataclass(frozen=True, kw_only=True)
class Asked:
    words: int
    output: int
    seed: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--rows", default="", help="streams x tokens in x tokens out: 128x512x128")
    parser.add_argument("--mixed", type=int, default=0, help="streams of mixed lengths at once")
    parser.add_argument("--requests", type=int, default=384, help="of --mixed")
    parser.add_argument("--clients", type=int, default=6, help="processes that ask")
    parser.add_argument("--serve-arguments", default="", help="further ones, of the server")
    parser.add_argument("--trace", default="", help="file for a line a step, which is made anew")
    add_device_arguments(parser)
    options = parser.parse_args()
    rows = [tuple(map(int, row.split("x"))) for row in options.rows.split(",") if row]
    most = max([options.mixed, *(row[0] for row in rows)])
    extra = ["--max-running", str(most), *options.serve_arguments.split()]
    if options.trace:
        Path(options.trace).unlink(missing_ok=True)
        extra += ["--trace-steps", options.trace]
    results: list[dict[str, Any]] = []
    longest = max([MIXED_INPUT[1] * 2, *((row[1] * 2 + row[2]) for row in rows)])
    with HttpServer(options, num_tokens=longest, extra=extra) as server:
        print(" ".join(f"{word:>12}" for word in HEADING))
        (probe,) = ask_all(server.port, [[Asked(words=600, output=8, seed="warm")]], clients=1)
        for number, (streams, tokens, output) in enumerate(rows):
            words = round(tokens * 600 / probe.prompt_tokens)
            warm = [[Asked(words=8, output=40, seed=f"w{n}")] for n in range(streams)]
            ask_all(server.port, warm, clients=options.clients)  # graphs of this size
            lines = [
                [Asked(words=words, output=output, seed=f"{number}/{streams}/{n}")]
                for n in range(streams)
            ]
            results.append(measure(server.port, f"{streams}x{tokens}x{output}", lines, options))
        if options.mixed:
            lines = mixed_lines(options, 600 / probe.prompt_tokens)
            results.append(measure(server.port, "mixed", lines, options))
    if options.trace:
        print_steps(read_steps(options.trace), results)
    facts = {"subject": "http rows", "model": options.model, **machine_facts()}
    print(json.dumps({**facts, "clients": options.clients, "rows": results}))


def print_steps(steps: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Print what the steps of each row took."""
    print(STEPS_HEADING)
    for row in results:
        own = [step for step in steps if row["began"] <= step["at"] <= row["ended"]]
        print("\n".join(table_of(row["row"], own)))


HEADING = ("row", "tok/s", "prompts/s", "ttft p50 ms", "ttft max", "tbt p50", "tbt p99", "p99/p50")


def mixed_lines(options: argparse.Namespace, words_a_token: float) -> list[list[Asked]]:
    """Return the requests of each stream, one after the other."""
    draw = random.Random(options.seed)

    def between(least: int, most: int) -> int:
        return round(math.exp(draw.uniform(math.log(least), math.log(most))))

    asked = [
        Asked(
            words=round(between(*MIXED_INPUT) * words_a_token),
            output=between(*MIXED_OUTPUT),
            seed=f"m{n}",
        )
        for n in range(options.requests)
    ]
    return [asked[n :: options.mixed] for n in range(options.mixed)]


def measure(
    port: int, name: str, lines: list[list[Asked]], options: argparse.Namespace
) -> dict[str, Any]:
    """Ask, print a row and return it."""
    began = time.monotonic()
    answers = ask_all(port, lines, clients=options.clients)
    ended = max(answer.times[-1] for answer in answers)
    began = min(answer.sent for answer in answers)
    first = [answer.times[0] - answer.sent for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps]
    outputs = sum(answer.output_tokens for answer in answers)
    prompts = sum(answer.prompt_tokens for answer in answers)
    p50, p99 = quantile(gaps, 0.5), quantile(gaps, 0.99)
    row = {
        "row": name,
        "output_tokens_per_second": round(outputs / (ended - began), 1),
        "prompt_tokens_per_second": round(prompts / (ended - began), 1),
        "first_token_ms_p50": milliseconds(quantile(first, 0.5)),
        "first_token_ms_max": milliseconds(max(first)),
        "between_ms_p50": milliseconds(p50),
        "between_ms_p99": milliseconds(p99),
        "between_p99_over_p50": round(p99 / p50, 2) if p50 else 0.0,
        "requests": len(answers),
        "output_tokens": outputs,
        "prompt_tokens": prompts,
        "began": began,
        "ended": ended,
    }
    print(" ".join(f"{value!s:>12}" for value in list(row.values())[: len(HEADING)]), flush=True)
    return row


def ask_all(port: int, lines: list[list[Asked]], *, clients: int) -> list[Answer]:
    """Ask each line of requests one after the other, all lines at once, by several processes."""
    clients = min(clients, len(lines))
    start_at = time.monotonic() + 0.5  # when all processes are there
    with multiprocessing.get_context("fork").Pool(clients) as pool:
        parts = [(port, lines[n::clients], start_at) for n in range(clients)]
        return [answer for part in pool.map(_client, parts) for answer in part]


def _client(part: tuple[int, list[list[Asked]], float]) -> list[Answer]:
    port, lines, start_at = part
    bodies = [[(_body(asked)) for asked in line] for line in lines]
    time.sleep(max(0.0, start_at - time.monotonic()))
    return asyncio.run(_ask_lines(port, bodies))


async def _ask_lines(port: int, lines: list[list[bytes]]) -> list[Answer]:
    async def one(line: list[bytes]) -> list[Answer]:
        return [await _stream(port, body) for body in line]

    return [answer for found in await asyncio.gather(*map(one, lines)) for answer in found]


def _body(asked: Asked) -> bytes:
    words = " ".join(random.Random(asked.seed).choices(WORDS, k=asked.words))
    fields = {
        "model": "default",
        "prompt": words,
        "max_tokens": asked.output,
        "temperature": 1,
        "ignore_eos": True,
        "repetition_penalty": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(fields).encode()


async def _stream(port: int, data: bytes) -> Answer:
    answer = Answer(sent=time.monotonic())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE_BYTES)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{port}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    seen = b""
    async for line in reader:
        if line.startswith(b"data: "):
            seen = line
            if b'"completion_tokens"' in line:
                usage = json.loads(line[6:])["usage"]
                answer.output_tokens = usage["completion_tokens"]
                answer.prompt_tokens = usage["prompt_tokens"]
            elif b'"text":"' in line and b'"text":""' not in line:
                answer.times.append(time.monotonic())
    writer.close()
    answer.times = answer.times or [time.monotonic()]  # of text that nobody can see
    if not answer.output_tokens:
        raise RuntimeError(f"no answer; the last line was {seen!r}")
    return answer


if __name__ == "__main__":
    main()
