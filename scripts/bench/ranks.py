"""How much faster several devices compute a model together than one of them.

    python scripts/bench/ranks.py MODEL.zse --ranks 1,2 --device cuda

Each number of ranks is a process of its own: the time until it is ready, one request's tokens a
second, a long prompt, and many requests at once. Greedy tokens of all are compared. Prints a table,
and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

from engine_runs import middle, whole_numbers
from machine import machine_facts

from zse.engine.loading import load_model
from zse.engine.meter import random_prompts, run_batch
from zse.engine.request import Request, SamplingParams
from zse.option import with_values
from zse.settings import load_settings

WARM_TOKENS = 8
COMPARED_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--ranks", default="1,2", help="numbers of devices, one after the other")
    parser.add_argument("--stages", action="store_true", help="of layers, not of each layer")
    parser.add_argument("--device", default="auto", help="cpu or cuda")
    parser.add_argument("--gpus", default="", help="of several ranks; 0,0: two in turns on one")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of the long prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--batch", type=int, default=64, help="requests at once; 0 measures none")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each number")
    parser.add_argument("--only", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options, options.only)))
        return
    rows = [row for ranks in whole_numbers(options.ranks) if (row := in_child(options, ranks))]
    print_table(rows)
    facts = {"bench": "ranks", "model": options.model, "prompt": options.prompt, "rows": rows}
    print(json.dumps(facts | machine_facts()))


def in_child(options: argparse.Namespace, ranks: int) -> dict[str, Any] | None:
    """Measure in a process of its own; what fails is told and left out."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", str(ranks)]
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, timeout=options.timeout, text=True
        )
    except subprocess.TimeoutExpired:
        print(f"{ranks} ranks took more than {options.timeout:g} s", flush=True)
        return None
    if done.returncode:
        print(f"{ranks} ranks ended with {done.returncode}", flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Shares:
    """How much of some time the engine's thread handed steps over, and waited for them."""

    def __init__(self, runner: Any) -> None:
        self._submit = runner.submit
        self.num_steps, self.submitting, self.waiting = 0, 0.0, 0.0
        runner.submit = self._timed

    def _timed(self, batch: Any) -> Any:
        began = time.perf_counter()
        pending = self._submit(batch)
        self.submitting += time.perf_counter() - began
        self.num_steps += 1
        return _TimedStep(self, pending)

    def taken(self) -> dict[str, float]:
        """Return ms a step since the last time."""
        count = max(self.num_steps, 1)
        found = {
            "steps": self.num_steps,
            "submit_ms": round(1e3 * self.submitting / count, 3),
            "wait_ms": round(1e3 * self.waiting / count, 3),
        }
        self.num_steps, self.submitting, self.waiting = 0, 0.0, 0.0
        return found


class _TimedStep:
    """A step whose end is waited for with a clock."""

    def __init__(self, shares: Shares, pending: Any) -> None:
        self._shares, self._pending = shares, pending

    def sample(self) -> None:
        self._pending.sample()

    def wait(self) -> Any:
        began = time.perf_counter()
        try:
            return self._pending.wait()
        finally:
            self._shares.waiting += time.perf_counter() - began


def measured(options: argparse.Namespace, ranks: int) -> dict[str, Any]:
    settings = load_settings()
    longest = max(options.prompt, 512) + options.output
    values = {
        "device": options.device,
        "pipeline_parallel" if options.stages else "tensor_parallel": ranks,
        "max_context": longest,
        "max_sequences": max(options.batch, 1),
        "prefix_cache": False,
        "speculate": "off",
        "gpus": options.gpus if ranks > 1 else "",
    }
    load = with_values(settings.serve.load, values)
    began = time.perf_counter()
    model = load_model(options.model, load, replace(settings, serve=settings.serve))
    ready = time.perf_counter() - began
    try:
        core, vocab = model.core, model.core.runner.vocab_size
        shares = Shares(core.runner)
        one = random_prompts(vocab, 1, 512, 0)
        run_batch(core, one, WARM_TOKENS)
        shares.taken()
        decode = middle([run_batch(core, one, options.output) for _ in range(options.repeat)])
        of_decode = shares.taken()
        long = random_prompts(vocab, 1, options.prompt, 1)
        run_batch(core, long, 1)
        shares.taken()
        prefill = middle([run_batch(core, long, 1) for _ in range(options.repeat)])
        of_prefill = shares.taken()
        found = {
            "ranks": ranks,
            "device": str(model.device),
            "ready_seconds": round(ready, 3),
            "decode_tokens_per_second": round(decode.decode_rate, 1),
            "step_ms": round(1e3 * decode.decode_seconds / max(decode.decode_tokens, 1), 4),
            "prefill_ms": round(1e3 * max(prefill.first_token_seconds), 2),
            "prefill_tokens_per_second": round(prefill.prompt_rate, 1),
            "of_decode": of_decode,
            "of_prefill": of_prefill,
            "tokens": greedy(core, random_prompts(vocab, 1, 100, 2)[0]),
        }
        if options.batch:
            many = random_prompts(vocab, options.batch, 512, 3)
            run_batch(core, many, WARM_TOKENS)
            shares.taken()
            batch = run_batch(core, many, options.output)
            found["batch_tokens_per_second"] = round(batch.output_rate, 1)
            found["batch_step_ms"] = round(
                1e3 * batch.decode_seconds / max(len(batch.step_seconds), 1), 3
            )
            found["of_batch"] = shares.taken()
        return found
    finally:
        model.close()


def greedy(core: Any, prompt: list[int]) -> list[int]:
    """Return the likeliest tokens behind a prompt."""
    params = SamplingParams(max_tokens=COMPARED_TOKENS, temperature=0.0, ignore_eos=True)
    core.add_request(Request(request_id="greedy", prompt_token_ids=prompt, params=params))
    tokens: list[int] = []
    while core.has_work:
        tokens += [event.token_id for event in core.step() if event.token_id is not None]
    return tokens


def print_table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    columns = [
        ("ready s", "ready_seconds", False),
        ("decode tok/s", "decode_tokens_per_second", True),
        ("prefill tok/s", "prefill_tokens_per_second", True),
        ("batch tok/s", "batch_tokens_per_second", True),
    ]
    print(
        f"{'ranks':>5}" + "".join(f"{name:>16} {'times':>6}" for name, _, _ in columns) + "  same"
    )
    first = rows[0]
    for row in rows:
        line = f"{row['ranks']:>5}"
        for _, key, _ in columns:
            value, base = row.get(key, 0.0), first.get(key, 0.0)
            line += f"{value:>16,.2f} {value / base if base else 0:>6.2f}"
        pairs = zip(first["tokens"], row["tokens"], strict=False)
        alike = next((at for at, (a, b) in enumerate(pairs) if a != b), len(row["tokens"]))
        print(f"{line}  {alike} of {len(row['tokens'])}")
    for row in rows:
        shares = {
            name: row[name] for name in ("of_decode", "of_prefill", "of_batch") if name in row
        }
        print(f"{row['ranks']} ranks, ms a step: {shares}, batch step {row.get('batch_step_ms')}")


if __name__ == "__main__":
    main()
