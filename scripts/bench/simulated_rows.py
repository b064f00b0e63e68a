"""What a server's rows would be on a GPU whose steps take what was measured: the scheduler alone.

    python scripts/bench/simulated_rows.py --rows 8x512x16,128x512x128,256x1000x1000 --mixed 128

The engine's own core plans every step; a runner of numbers says when each would have ended, by the
costs below, and the clients of ``http_rows.py`` ask as they do there. So a rule of the scheduler is
tried in seconds and without a GPU. What is left out: tokens' text, connections, and everything that
a host does by chance. Prints the table of ``http_rows.py``; the same seed gives the same table.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import json
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from zse.backends.gpu.prompt_rows import filled_rows
from zse.backends.types import SampledToken, StepBatch
from zse.device.facts_of_gpus import H200
from zse.engine.core import EngineCore
from zse.engine.request import Request, SamplingParams
from zse.options import load_options

MIXED_INPUT, MIXED_OUTPUT = (32, 2000), (16, 256)
HEADING = ("row", "tok/s", "prompts/s", "ttft p50 ms", "ttft max", "tbt p50", "tbt p99", "p99/p50")

# 7B INT4 on an H200, from ``step_profile.py`` and ``http_rows.py --trace``, 2026-11-23.
DECODE_MS = {1: 1.45, 2: 1.7, 4: 2.1, 8: 2.4, 16: 2.5, 32: 2.6, 64: 4.2, 128: 4.1, 256: 6.0}
"""A captured step of so many rows, short contexts; a step has the next power of two of rows."""
CONTEXT_MS = 12.5e-6
"""Each token that a row looks at adds to it."""
TILE_ROWS = 128
MATRICES = [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)]
PROMPT_MS = {
    2: 7.0, 3: 8.0, 4: 10.1, 5: 12.4, 6: 13.0, 7: 14.8, 8: 14.5, 9: 15.9, 10: 20.6, 11: 22.0,
    13: 25.6, 16: 26.5, 17: 28.8, 18: 30.0, 22: 37.8, 26: 41.7, 28: 45.2, 29: 51.3, 32: 52.0,
    41: 70.4, 46: 78.0, 57: 98.0, 64: 103.5,
}  # fmt: skip
"""A step with a prompt of so many tiles of rows, hardly any of them answers."""
HOST_DECODE_MS = (0.25, 0.024)
"""Planning, launching and delivering a captured step, and for each row."""
HOST_PROMPT_MS = (5.0, 0.03)
"""Likewise of a step with a prompt, whose kernels are launched one by one."""
LEAST_PATIENCE = 1e-6
"""Seconds below which a wait is none."""
ARRIVAL_MS = 0.35
"""From one prompt of a crowd to the next: bodies are read, texts are tokenized."""


@dataclass
class Clock:
    """Seconds that pass where something takes time."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class SimulatedStep:
    """A step in flight."""

    clock: Clock
    ends: float
    answers: list[list[SampledToken]]

    def sample(self) -> None:
        """All tokens are the same one."""

    def wait(self) -> list[list[SampledToken]]:
        self.clock.seconds = max(self.clock.seconds, self.ends)
        return self.answers


@dataclass
class SimulatedRunner:
    """A device of numbers that looks one step ahead."""

    clock: Clock
    num_blocks: int
    host_prompt_ms: float
    block_size: int = 32
    max_position: int = 1 << 16
    vocab_size: int = 32
    looks_ahead: bool = True
    steps_in_flight: int = 1
    num_checkpoints: int | None = None
    most_sequences: int | None = None
    windows: tuple[()] = ()
    tokens_beside: int = 2048
    is_encoder: bool = False
    free_at: float = 0.0
    """When the device has done what it was given."""
    steps: list[tuple[int, int, float]] = field(default_factory=list)
    """Rows of answers and of prompts, and milliseconds."""

    def submit(self, batch: StepBatch) -> SimulatedStep:
        tokens = sum(len(chunk.token_ids) for chunk in batch.chunks if chunk.kind == "prefill")
        decoding = [chunk for chunk in batch.chunks if chunk.kind != "prefill"]
        context = sum(chunk.start_position for chunk in decoding)
        began = self.clock.seconds
        base, each = (self.host_prompt_ms, HOST_PROMPT_MS[1]) if tokens else HOST_DECODE_MS
        host_ms = base + each * len(batch.chunks)
        self.clock.seconds += host_ms / 1e3
        took = device_ms(len(decoding), tokens, context)
        # A device that waits for launches ends behind the last of them.
        ends = max(max(began, self.free_at) + took / 1e3, self.clock.seconds + 0.0003)
        self.steps.append((len(decoding), tokens, (ends - max(began, self.free_at)) * 1e3))
        self.free_at = ends
        sampled = [SampledToken(1, 0.0)]
        return SimulatedStep(self.clock, ends, [sampled if row else [] for row in batch.sampling])

    def filled_rows(self, most_rows: int) -> int:
        """Return how many rows of a step take least each."""
        return filled_rows(MATRICES, H200, most_rows)

    def rest(self, _free_blocks: object) -> None:
        """Hold nothing."""

    def close(self) -> None:
        """Hold nothing."""


def device_ms(rows: int, tokens: int, context: int) -> float:
    """Return what a device takes for a step."""
    attention = context * CONTEXT_MS
    if not tokens:
        sizes = sorted(DECODE_MS)
        size = sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)]
        return DECODE_MS[size] + attention
    tiles = max(math.ceil((rows + tokens) / TILE_ROWS), 2)
    known = sorted(PROMPT_MS)
    after = known[min(bisect.bisect_left(known, tiles), len(known) - 1)]
    before = max((each for each in known if each < tiles), default=after)
    share = (tiles - before) / max(after - before, 1)
    return PROMPT_MS[before] + share * (PROMPT_MS[after] - PROMPT_MS[before]) + attention


@dataclass
class Asked:
    """A request of a client, and when its tokens came."""

    tokens: int
    output: int
    sent: float = 0.0
    times: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="8x512x16,128x512x128,256x1000x1000")
    parser.add_argument("--mixed", type=int, default=128, help="streams of mixed lengths at once")
    parser.add_argument("--requests", type=int, default=384, help="of --mixed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--host-ms", type=float, default=HOST_PROMPT_MS[0], help="of a prompt step")
    parser.add_argument("--steps", default="", help="file for a line a step")
    options = parser.parse_args()
    print(" ".join(f"{word:>12}" for word in HEADING))
    results = []
    for row in filter(None, options.rows.split(",")):
        streams, tokens, output = map(int, row.split("x"))
        lines = [[Asked(tokens, output)] for _ in range(streams)]
        results.append(simulated(row, lines, options))
    if options.mixed:
        results.append(simulated("mixed", mixed_lines(options), options))
    print(json.dumps({"subject": "simulated rows", "rows": results}))


def mixed_lines(options: argparse.Namespace) -> list[list[Asked]]:
    """Return the requests of each stream, one after the other, as ``http_rows.py`` draws them."""
    draw = random.Random(options.seed)

    def between(least: int, most: int) -> int:
        return round(math.exp(draw.uniform(math.log(least), math.log(most))))

    asked = [Asked(between(*MIXED_INPUT), between(*MIXED_OUTPUT)) for _ in range(options.requests)]
    return [asked[n :: options.mixed] for n in range(options.mixed)]


def simulated(name: str, lines: list[list[Asked]], options: argparse.Namespace) -> dict[str, Any]:
    """Answer the requests of some streams, print a row and return it."""
    clock = Clock()
    most = max(asked.tokens + asked.output for line in lines for asked in line)
    runner = SimulatedRunner(clock, len(lines) * (most // 32 + 3), options.host_ms)
    core = core_of(runner, len(lines))
    Clients(core, clock, lines).run()
    asked = [one for line in lines for one in line]
    if options.steps:
        with Path(options.steps).open("a") as file:
            file.writelines(json.dumps([name, *step]) + "\n" for step in runner.steps)
    return row_of(name, asked)


def core_of(runner: SimulatedRunner, streams: int) -> EngineCore:
    load = load_options(
        device="cpu", max_sequences=streams, max_batch_tokens=8192, prefix_cache=False
    )
    core = EngineCore(runner, load)  # type: ignore[arg-type]
    core._scheduler.prompt_budget.now = runner.clock
    core._scheduler.prompt_budget._last_ended = 0.0
    core._pipeline._patience.worked = runner.clock
    return core


class Clients:
    """Streams that ask one request after the other, all beginning at once."""

    def __init__(self, core: EngineCore, clock: Clock, lines: list[list[Asked]]) -> None:
        self._core, self._clock = core, clock
        self._lines = lines
        self._arriving: list[tuple[float, int, int]] = []
        """When a request comes to the engine: then, of which stream, which of its requests."""
        self._line_free_at = 0.0
        self._open: dict[str, Asked] = {}
        for stream in range(len(lines)):
            self._send(stream, 0)

    def run(self) -> None:
        while self._arriving or self._core.has_work:
            if not self._core.has_work:
                self._clock.seconds = max(self._clock.seconds, self._arriving[0][0])
            self._take_arrived()
            while (patience := self._core.patience_seconds) > LEAST_PATIENCE:
                until = self._clock.seconds + patience
                comes = self._arriving[0][0] if self._arriving else math.inf
                self._clock.seconds = min(until, max(comes, self._clock.seconds))
                self._take_arrived()
            for event in self._core.step():
                asked = self._open[event.request_id]
                asked.times.append(self._clock.seconds)
                if event.finish_reason is not None:
                    stream, number = map(int, event.request_id.split("/"))
                    self._send(stream, number + 1)

    def _send(self, stream: int, number: int) -> None:
        line = self._lines[stream]
        if number >= len(line):
            return
        asked = line[number]
        asked.sent = self._clock.seconds
        self._line_free_at = max(self._line_free_at, asked.sent) + ARRIVAL_MS / 1e3
        heapq.heappush(self._arriving, (self._line_free_at + 0.001, stream, number))

    def _take_arrived(self) -> None:
        while self._arriving and self._arriving[0][0] <= self._clock.seconds:
            _, stream, number = heapq.heappop(self._arriving)
            asked = self._lines[stream][number]
            request_id = f"{stream}/{number}"
            self._open[request_id] = asked
            params = SamplingParams(max_tokens=asked.output, ignore_eos=True)
            prompt = [1] * asked.tokens
            self._core.add_request(
                Request(request_id=request_id, prompt_token_ids=prompt, params=params)
            )


def row_of(name: str, answers: list[Asked]) -> dict[str, Any]:
    """Print a row as ``http_rows.py`` does, and return it."""
    ended = max(answer.times[-1] for answer in answers)
    first = sorted(answer.times[0] - answer.sent for answer in answers)
    gaps = sorted(
        after - before
        for answer in answers
        for before, after in zip(answer.times, answer.times[1:], strict=False)
    )
    p50, p99 = gaps[len(gaps) // 2], gaps[int(len(gaps) * 0.99)]
    row = {
        "row": name,
        "output_tokens_per_second": round(sum(answer.output for answer in answers) / ended, 1),
        "prompt_tokens_per_second": round(sum(answer.tokens for answer in answers) / ended, 1),
        "first_token_ms_p50": round(first[len(first) // 2] * 1e3, 1),
        "first_token_ms_max": round(first[-1] * 1e3, 1),
        "between_ms_p50": round(p50 * 1e3, 2),
        "between_ms_p99": round(p99 * 1e3, 2),
        "between_p99_over_p50": round(p99 / p50, 2),
    }
    print(" ".join(f"{value!s:>12}" for value in row.values()), flush=True)
    return row


if __name__ == "__main__":
    main()
