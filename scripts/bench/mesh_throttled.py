"""Real nodes of unlike speeds on one machine: the planner's split against one by memory.

    scripts/bench/mesh_throttled.py MODEL.zse [--nodes 0.15:1,0.15:1,0.05:2,0.05:2] [--rounds 2]

Each node is a process in a control group with a limit of its own, CORES:GIB of memory that it says
it has. Both splits are measured in turn, each with nodes that have just started and measured
themselves. Control groups need root; where none can be made it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from control_group import ControlGroup
from machine import machine_facts
from mesh_asking import Asking, Run, requests, wait_until
from mesh_gpu import free_port

from zse.engine.opening import open_file
from zse.errors import UsageError
from zse.mesh.finding import Finder
from zse.mesh.joining import MeshSetup, join_mesh
from zse.mesh.membership import Patience
from zse.options import load_options
from zse.settings import load_settings

SECRET = "a secret of this benchmark"
SPLITS = ("memory", "auto")
PERIOD_MICROSECONDS = 50_000
PATIENCE = Patience(silent_seconds=60.0, loaded_silent_seconds=60.0, accusation_seconds=60.0)
"""Nobody is to be lost here: a node with a twentieth of a core is late with all it says."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file of many layers")
    parser.add_argument("--nodes", default="0.15:1,0.15:1,0.05:2,0.05:2", help="CORES:GIB of each")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    nodes = [tuple(map(float, one.split(":"))) for one in arguments.nodes.split(",")]
    found: dict[str, list[float]] = {split: [] for split in SPLITS}
    layers: dict[str, dict[str, int]] = {}
    for _ in range(arguments.rounds):
        for split in SPLITS:
            try:
                rate, layers[split] = measured(arguments, nodes, split)
            except UsageError as error:
                print(f"skipped: {error}")
                return 77
            found[split].append(rate)
            print(f"{split:8} {rate:6.2f} tokens/s, layers {layers[split]}", flush=True)
    rates = {split: statistics.median(found[split]) for split in SPLITS}
    report = {"nodes": arguments.nodes, "layers": layers, "tokens_per_second": rates}
    report["times"] = round(rates["auto"] / rates["memory"], 2)
    report["load_average"] = os.getloadavg()[0]
    print(json.dumps({"bench": "mesh_throttled", **report, **machine_facts()}))
    return 0


def measured(
    arguments: argparse.Namespace, nodes: list[tuple[float, ...]], split: str
) -> tuple[float, dict[str, int]]:
    """Return the tokens a second of several streams, and how many layers each node has."""
    options = load_options(device="cpu", threads=1, num_blocks=64, max_sequences=arguments.streams,
                           max_context=256, speculate="off", prefix_cache=False)  # fmt: skip
    reader = open_file(arguments.model, options, load_settings())
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        addresses = [start(running, folder, number, *node) for number, node in enumerate(nodes)]
        setup = MeshSetup(secret=SECRET.encode(), finder=Finder(lambda: addresses),
                          least_nodes=len(nodes), wait_seconds=60.0, split=split,
                          patience=PATIENCE)  # fmt: skip
        asking = Asking(join_mesh(reader, str(Path(arguments.model).resolve()), options, setup),
                        options)  # fmt: skip
        running.callback(asking.core.close)
        front = asking.core.runner.front
        wait_until(lambda: len(front._ready()) == len(front.duties), 120.0)
        rate = 0.0
        for tokens in (2, arguments.tokens):  # the first answers bring pages
            run = Run()
            for prompt, params in requests(arguments.streams, tokens):
                asking.ask(run, prompt, **params)
            begun = time.monotonic()
            asking.finish(run)
            rate = sum(map(len, run.texts.values())) / (time.monotonic() - begun)
        if front.num_failovers:
            raise SystemExit("a node was given up: this measures nothing")
        return rate, {duty.node: duty.end_layer - duty.first_layer for duty in front.duties}


def start(running: ExitStack, folder: Path, number: int, cores: float, gib: float) -> str:
    """Start a node with so much of a core; return its address."""
    group = ControlGroup(f"node{number}", period_microseconds=PERIOD_MICROSECONDS)
    running.callback(group.close)
    address, log = f"127.0.0.1:{free_port()}", folder / f"n{number}.log"
    words = [sys.executable, "-m", "zse", "mesh", "start", "--listen", address, "--no-discovery",
             "--name", f"n{number}", "--threads", "1", "--memory-gib", str(gib)]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            group.command(*words), stdout=out, stderr=out,
            env={**os.environ, "ZSE_MESH_SECRET": SECRET},
        )  # fmt: skip
    running.callback(process.wait)
    running.callback(process.kill)
    wait_until(lambda: b" listens at " in log.read_bytes(), 60.0)
    group.set_quota(cores)
    return address


if __name__ == "__main__":
    sys.exit(main())
