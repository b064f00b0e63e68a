"""What `zse route` adds: CPU time for a streamed token, and time before an answer.

    python scripts/bench/route_cost.py --streams 1 8 32 128

The replica is paced: a token for every stream each 20 ms (``paced_server.py``). The CPU time of the
router between two moments within streams, by the tokens that passed, is what a token costs. Latency
is that of short answers, asked directly and through the router in turns. Prints a table, and one
JSON object as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from http_cost import ROOT, SERVER, cost_of, cpu_seconds, serving, wait_for_port
from machine import machine_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = "/v1/models"


@contextlib.contextmanager
def routing(*ports: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a router over servers of this machine; give its process and its port."""
    with tempfile.TemporaryDirectory() as home, Path(home, "log").open("wb") as log:
        words = [word for port in ports for word in ("--replica", f"http://127.0.0.1:{port}")]
        process = subprocess.Popen(
            [sys.executable, "-m", "zse", "route", "--port", "0", "--log-level", "info", *words],
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT), "ZSE_HOME": home, "ZSE_LOG_FORMAT": "json"},
        )
        try:
            yield process, wait_for_port(process, Path(log.name))
        finally:
            process.kill()
            process.wait()


def latency(direct: int, routed: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of an answer, directly and through the router, asked in turns."""
    connections = {
        name: http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for name, port in (("direct", direct), ("routed", routed))
    }
    taken: dict[str, list[float]] = {name: [] for name in connections}
    for _ in range(rounds):
        for name, connection in connections.items():
            begun = time.perf_counter()
            connection.request("GET", PATH)
            connection.getresponse().read()
            taken[name].append((time.perf_counter() - begun) * 1e3)
    for connection in connections.values():
        connection.close()
    return {
        name: {
            "p50": round(statistics.median(values), 3),
            "p90": round(statistics.quantiles(values, n=10)[8], 3),
        }
        for name, values in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=300, help="for the latency")
    parser.add_argument("--server-tree", type=Path, default=ROOT, help="whose server is asked")
    options = parser.parse_args()
    costs: dict[int, list[float]] = {number: [] for number in options.streams}
    with serving(SERVER, options.server_tree) as (_, port), routing(port) as (router, routed):
        for _ in range(options.rounds):
            for number in options.streams:
                cost = asyncio.run(cost_of(router.pid, routed, number, options.seconds))
                costs[number].append(cost)
        before = cpu_seconds(router.pid)
        times = latency(port, routed, options.requests)
        request_us = (cpu_seconds(router.pid) - before) / options.requests * 1e6
    print("streams   router's CPU microseconds a token")
    for number, values in costs.items():
        print(f"{number:7}   {min(values):8.1f}")
    print(f"a short answer, ms: {json.dumps(times)}; CPU of a request: {request_us:.0f} us")
    found = {
        "us_per_token": {str(number): round(min(each), 1) for number, each in costs.items()},
        "latency_ms": times,
        "us_per_request": round(request_us, 1),
    }
    facts = {"subject": "route_cost", "rounds": options.rounds, "load": os.getloadavg()[0]}
    print(json.dumps({**facts, **machine_facts(), **found}))


if __name__ == "__main__":
    main()
