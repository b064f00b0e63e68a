"""Process start to first streamed token over HTTP, beside what a bare `import torch` costs.

Starts `python -m zse.serve` in a fresh process, asks one question by streaming, stops it; repeats.
Both are timed in the same run on the same machine, so the ratio says more than the milliseconds.

    .venv/bin/python scripts/bench/cold_start.py [MODEL.zse] [--repeat 5]
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine_facts

from zse.quantize.builtin import ensure_zse

BODY = {
    "model": "default",
    "stream": True,
    "temperature": 0,
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        model = ensure_zse(options.model, quant="int8", cache_dir=Path(cache))
        runs = [one_start(model) for _ in range(options.repeat + 1)][1:]  # the first warms the disk
    imports = [seconds_of([sys.executable, "-c", "import torch"]) for _ in range(options.repeat)]
    phases = {name: [run[name] * 1000 for run in runs] for name in runs[0]}
    phases["import_torch"] = [seconds * 1000 for seconds in imports]
    print(f"{'from process start':<20} {'median ms':>10} {'min':>8} {'max':>8}")
    for name, values in phases.items():
        median = statistics.median(values)
        print(f"{name:<20} {median:>10.0f} {min(values):>8.0f} {max(values):>8.0f}")
    medians = {f"{name}_ms_p50": round(statistics.median(v), 1) for name, v in phases.items()}
    facts = {"subject": "cold_start", **machine_facts(), "num_runs": options.repeat}
    print(json.dumps({**facts, **medians}))


def one_start(model: Path) -> dict[str, float]:
    """Start, ask, stop; return seconds to liveness, readiness and the first token."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "zse.serve", str(model), "--port", str(port)],
        stderr=subprocess.DEVNULL,
    )
    try:
        live = wait_for(port, "/health/live", began)
        ready = wait_for(port, "/health/ready", began)
        token = first_token(port, began)
    finally:
        server.terminate()
        server.wait()
    return {"live": live, "ready": ready, "first_token": token}


def wait_for(port: int, path: str, began: float) -> float:
    while time.perf_counter() - began < 120:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return time.perf_counter() - began
        except ConnectionError:
            pass
        finally:
            connection.close()
        time.sleep(0.002)
    raise SystemExit(f"{path} did not answer in 120 s")


def first_token(port: int, began: float) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
    response = connection.getresponse()
    for line in response:
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                seconds = time.perf_counter() - began
                response.read()
                return seconds
    raise SystemExit("the answer held no text")


def seconds_of(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
