"""Servers under an open load: time to the first token and between tokens, and goodput.

    python scripts/bench/serve_load.py --zse MODEL.zse --llama MODEL.gguf --rate 0.5,1,2 \
        --objective ttft=2,tbt=0.2 --llama-server path/to/llama-server
    python scripts/bench/serve_load.py --url http://localhost:8000/v1 --rate 4

Requests come as a Poisson process and do not wait for each other: a server that is too slow builds
up a queue, as it does in earnest, and the wait counts from when a request was due. Half of the
prompts begin with one of a few long texts; lengths are mixed. Every server gets the same requests.
Several are measured in turns, each alone on the machine; ``--rounds`` puts rounds together. Goodput
is how many requests a second were answered within the objective: their first token, and the mean
time between their tokens. Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from engine_runs import milliseconds, quantile
from load_client import send_load
from load_plan import plan_load
from load_servers import commands_of, running
from machine import machine_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_client import Outcome

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def main() -> None:
    options = build_parser().parse_args()
    servers = commands_of(options)
    if not servers and not options.url:
        raise SystemExit("name a server with --url, --zse or --llama")
    rows: list[dict[str, Any]] = []
    for rate in options.rate:
        outcomes: dict[str, list[Outcome]] = {}
        for round_number in range(options.rounds):
            options.seed += round_number
            for name in (*servers, *options.url):
                is_own = name in servers
                place = running(servers[name]) if is_own else contextlib.nullcontext(name)
                with place as url:
                    found = asyncio.run(measure(url, options, rate))
                outcomes.setdefault(name, []).extend(found)
        for name, found in outcomes.items():
            rows.append({"server": name, "rate": rate, **figures(found, options)})
            print_row(rows[-1])
    facts = {"subject": "serve load", "objective": options.objective, "seconds": options.seconds}
    print(json.dumps({**facts, **machine_facts(), "rows": rows}))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", action="append", default=[], help="base URL of a running server")
    parser.add_argument("--zse", default="", help="model to start a zse server with")
    parser.add_argument("--llama", default="", help="GGUF to start llama.cpp's server with")
    parser.add_argument("--llama-server", default="", help="the server of llama.cpp to start")
    parser.add_argument("--slots", type=int, default=8, help="answers that it gives at once")
    parser.add_argument("--llama-python", default=sys.executable, help="Python that has it")
    parser.add_argument("--rate", type=numbers, default=[1.0], help="requests a second: 0.5,1,2")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals, a round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--objective", type=objective, default="ttft=2,tbt=0.2")
    parser.add_argument("--input", type=span, default=(16, 128), help="words of a prompt: 16-128")
    parser.add_argument("--output", type=span, default=(8, 64), help="tokens of an answer: 8-64")
    parser.add_argument("--shared", type=float, default=0.5, help="share with a common beginning")
    parser.add_argument("--prefix", type=int, default=128, help="words of that")
    parser.add_argument("--prefixes", type=int, default=4, help="how many there are")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for one answer")
    parser.add_argument("--context", type=int, default=1024, help="of servers started here")
    parser.add_argument("--threads", type=int, default=2, help="of servers started here")
    parser.add_argument("--seed", type=int, default=0)
    return parser


async def measure(url: str, options: argparse.Namespace, rate: float) -> list[Outcome]:
    """Send the load of one round, after one request that warms the server."""
    planned = plan_load(options, rate=rate)
    await send_load(url, planned[:1], patience=options.patience)
    return await send_load(url, planned, patience=options.patience)


def figures(outcomes: Sequence[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """Return what is said of the answers of one server at one rate, times in milliseconds."""
    whole = [outcome for outcome in outcomes if not outcome.problem]
    first = [outcome.first_seconds for outcome in whole]
    gaps = [gap for outcome in whole for gap in outcome.gaps]
    goal = options.objective
    good = sum(outcome.meets(goal["ttft"], goal["tbt"]) for outcome in outcomes)
    problems = sorted({outcome.problem for outcome in outcomes if outcome.problem})
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(whole),
        "goodput_per_s": round(good / options.seconds / options.rounds, 3),
        **{f"ttft_ms_{name}": milliseconds(quantile(first, at)) for name, at in SHARES.items()},
        **{f"tbt_ms_{name}": milliseconds(quantile(gaps, at)) for name, at in SHARES.items()},
        "problems": problems[:4],
    }


def print_row(row: dict[str, Any]) -> None:
    ttft = "/".join(f"{row[f'ttft_ms_{name}']:.0f}" for name in SHARES)
    tbt = "/".join(f"{row[f'tbt_ms_{name}']:.0f}" for name in SHARES)
    print(
        f"{row['server']:<18} {row['rate']:>5} a second: {row['requests']:>4} requests, "
        f"{row['failed']} failed, goodput {row['goodput_per_s']}; "
        f"first token {ttft} ms, between tokens {tbt} ms (p50/p95/p99)",
        flush=True,
    )


def numbers(text: str) -> list[float]:
    """Read ``0.5,1,2``."""
    return [float(word) for word in text.split(",")]


def span(text: str) -> tuple[int, int]:
    """Read ``16-128``."""
    least, _, most = text.partition("-")
    return int(least), int(most or least)


def objective(text: str) -> dict[str, float]:
    """Read ``ttft=2,tbt=0.2``, in seconds."""
    goal = {
        name: float(value) for name, _, value in (one.partition("=") for one in text.split(","))
    }
    if goal.keys() != {"ttft", "tbt"}:
        raise argparse.ArgumentTypeError("expected ttft=SECONDS,tbt=SECONDS")
    return goal


if __name__ == "__main__":
    main()
