"""Measures a mesh in network namespaces of one machine: what clients see when something breaks.

    scripts/bench/mesh.py --repeat 30 --json mesh.json      # as root, with /dev/net/tun

Four nodes (or ``--nodes``), each a process in a namespace of its own, behind a wire with a rate and
a delay; a front in one more. Every run asks for answers, breaks something in their midst and
compares the text with that of one process; the gap is the longest time between two tokens of any
answer, and the worst of all runs is what is told. The model is the built-in one (4 layers): times
are those of the mesh, not of a large model's layers. Without root, namespaces or /dev/net/tun it
says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from mesh_asking import Asking, Run, requests, wait_until
from mesh_hour import Load, Streams, measure_hour
from mesh_rejoin import told, watch_rejoin, whole
from mesh_speed import measure_discovery, measure_prefill, measure_streams
from mesh_world import Nodes, PipedWire, Wire, why_not

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a secret of this benchmark"
FAULTS = ["none", "kill", "hang", "cut", "mute", "slow"]
"""With ``--ranks`` there are ``rank`` and ``stopped-rank``, too."""
LOAD = {"device": "cpu", "threads": 1, "num_blocks": 512, "block_size": 16, "max_sequences": 16,
        "max_batch_tokens": 256, "deterministic": True, "speculate": "off",
        "prefix_cache": False}  # fmt: skip


def measure_faults(arguments, wire: Wire, nodes: Nodes, asking: Asking, front, expected) -> dict:
    found: dict[str, dict] = {}
    for fault in arguments.faults:
        gaps, rejoins, wrong, failovers = [], [], 0, front.num_failovers
        for repeat in range(arguments.repeat):
            victim = 1 + repeat % arguments.nodes
            # Slowness is given up for a while; here every run begins with all nodes.
            front._slow_until.clear()
            wait_until(lambda: whole(front, arguments.nodes), 60.0)
            run = Run()
            for prompt, params in requests(arguments.streams, arguments.tokens):
                asking.ask(run, prompt, **params)
            for _ in range(8 + repeat % 5):
                asking.step(run)
            wait_until(lambda: len(front._ready()) == len(front.duties))
            at = time.monotonic()
            break_it(fault, wire, nodes, victim)
            asking.finish(run)
            gaps.append(run.gap(at))
            texts = list(run.texts.values())
            wrong += sum(a != b for a, b in zip(texts, expected, strict=True))
            mend(fault, wire, nodes, victim)
            front._slow_until.clear()
            if fault != "none":
                rejoins.append(watch_rejoin(front, nodes, victim))
        found[fault] = {
            "runs": arguments.repeat,
            "worst_gap_ms": round(max(gaps) * 1e3, 1),
            "median_gap_ms": round(statistics.median(gaps) * 1e3, 1),
            "wrong_answers": wrong,
            "answers": arguments.repeat * arguments.streams,
            "failovers": front.num_failovers - failovers,
            **told(rejoins),
        }
        print(f"{fault:10} {json.dumps(found[fault])}", flush=True)
    return found


def break_it(fault: str, wire: Wire, nodes: Nodes, victim: int) -> None:
    if fault == "kill":
        nodes.signal(victim, signal.SIGKILL)
    elif fault == "hang":
        nodes.signal(victim, signal.SIGSTOP)
    elif fault == "rank":
        nodes.signal_ranks(victim, signal.SIGKILL)
    elif fault == "stopped-rank":
        nodes.signal_ranks(victim, signal.SIGSTOP)
    elif fault in ("cut", "mute"):
        wire.tell(f"{fault} {victim}")
    elif fault == "slow":
        wire.tell(f"slow {victim} 0.2")


def mend(fault: str, wire: Wire, nodes: Nodes, victim: int) -> None:
    if fault == "kill":
        nodes.processes[victim].wait()
        nodes.start(victim)
    elif fault == "hang":
        nodes.signal(victim, signal.SIGCONT)
    wire.tell(f"heal {victim}")


def inside(arguments) -> None:
    """Be the front, in its namespace; the wire's commands go through a pipe to the parent."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    sys.path.insert(0, str(ROOT))
    report: dict = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
        "wire": f"{arguments.mbit:g} Mbit/s, {2 * arguments.delay_ms:g} ms there and back",
    }
    nodes = Nodes(
        Path(arguments.folder),
        arguments.wire,
        discovery=arguments.discovery,
        ranks=arguments.ranks,
    )
    if arguments.discovery:
        report["discovery"] = measure_discovery(
            nodes, SECRET.encode(), count=arguments.nodes, rounds=arguments.rounds,
            is_listening=nodes.is_listening,
        )  # fmt: skip
    else:
        with ExitStack() as cleanup:
            cleanup.callback(nodes.close)
            asking, expected = joined(arguments, nodes, cleanup)
            report |= measured(arguments, nodes, asking, expected)
    write_report(arguments, report)


def joined(arguments, nodes: Nodes, cleanup: ExitStack) -> tuple[Asking, list[list[int]]]:
    """Start all nodes; return who asks them, and what one process answers to the same."""
    from zse.engine.opening import open_file
    from zse.mesh.finding import Finder
    from zse.mesh.joining import MeshSetup, join_mesh
    from zse.models.runner import load_runner
    from zse.options import load_options
    from zse.settings import load_settings

    # A prompt's rows are computed together where nobody compares the text.
    load = {**LOAD, "deterministic": not arguments.prefill,
            "exact_activations": arguments.ranks > 1}  # fmt: skip
    options, settings = load_options(**load), load_settings()
    reader = open_file(arguments.model, options, settings)
    alone = Asking(load_runner(reader, options), options)
    expected = Run()
    for prompt, params in requests(arguments.streams, arguments.tokens):
        alone.ask(expected, prompt, **params)
    alone.finish(expected)
    alone.core.close()
    for number in range(1, arguments.nodes + 1):
        nodes.start(number)
    addresses = [f"10.78.0.{number + 1}:7700" for number in range(1, arguments.nodes + 1)]
    setup = MeshSetup(
        secret=SECRET.encode(),
        finder=Finder(lambda: addresses),
        least_nodes=arguments.nodes,
        wait_seconds=60.0,
        split="even",
    )
    asking = Asking(join_mesh(reader, arguments.model, options, setup), options)
    cleanup.callback(asking.core.close)
    wait_until(lambda: whole(asking.core.runner.front, arguments.nodes), 60.0)
    return asking, list(expected.texts.values())


def measured(arguments, nodes: Nodes, asking: Asking, expected: list[list[int]]) -> dict:
    """Return what was asked for: a long prompt, a long run, or faults."""
    front, found = asking.core.runner.front, {}
    found["streams"] = measure_streams(asking, arguments.tokens)
    print(f"streams    {json.dumps(found['streams'])}", flush=True)
    if arguments.prefill:
        found["prefill"] = measure_prefill(
            front, nodes, asking, arguments.prefill, arguments.rounds
        )
        print(f"prefill    {json.dumps(found['prefill'])}", flush=True)
    elif arguments.minutes:
        streams = Streams(asking, list(requests(arguments.streams, arguments.tokens)), expected)
        with Load(arguments.least_load, arguments.busy) as load:
            found["hour"] = measure_hour(front, streams, load, minutes=arguments.minutes)
        print(f"hour       {json.dumps(found['hour'])}", flush=True)
    else:
        found["faults"] = measure_faults(arguments, PipedWire(), nodes, asking, front, expected)
    return found


def write_report(arguments, report: dict) -> None:
    print(json.dumps(report))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--mbit", type=float, default=1000.0)
    parser.add_argument("--delay-ms", type=float, default=2.5, help="one way")
    parser.add_argument("--faults", nargs="*", default=FAULTS)
    parser.add_argument(
        "--prefill", type=int, default=0, help="time a prompt of so many tokens, and nothing else"
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1, help="processes that share each layer")
    parser.add_argument("--discovery", action="store_true", help="time it, and nothing else")
    parser.add_argument("--rounds", type=int, default=3, help="of such prompts")
    parser.add_argument("--minutes", type=float, default=0.0, help="break nothing for so long")
    parser.add_argument("--busy", type=int, default=0, help="processes that only take time")
    parser.add_argument(
        "--least-load", type=float, default=0.0,
        help="load average that processes which only take time are started for",
    )  # fmt: skip
    parser.add_argument("--model", default="tiny", help="a .zse file of 4 layers or more")
    parser.add_argument("--json", default="")
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--wire", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("ZSE_MESH_SECRET", SECRET)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with namespaces and nodes taken down
    if arguments.folder:
        inside(arguments)
        return 0
    if reason := why_not():
        print(f"skipped: {reason}")
        return 77
    wire = Wire(arguments.delay_ms, arguments.mbit, arguments.nodes)
    try:
        with tempfile.TemporaryDirectory() as folder:
            read, write = os.pipe()
            os.set_inheritable(write, True)
            words = [sys.executable, __file__, *sys.argv[1:], "--folder", folder]
            words += ["--wire", str(os.getpid())]
            shell = f'exec "$@" 3>&{write}'
            front = subprocess.Popen(
                ["ip", "netns", "exec", wire.names[0], "bash", "-c", shell, "front", *words],
                pass_fds=(write,), cwd=ROOT,
            )  # fmt: skip
            os.close(write)
            try:
                with os.fdopen(read) as commands:
                    for line in commands:
                        wire.tell(line.strip())
                code = front.wait()
            finally:
                front.terminate()
                front.wait()
            if code:
                for log in sorted(Path(folder).glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text()[-1500:]}")
            return code
    finally:
        wire.close()


if __name__ == "__main__":
    sys.exit(main())
