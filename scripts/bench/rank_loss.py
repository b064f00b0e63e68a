"""What a client sees of a rank that is lost in the midst of its answer, and how soon that is over.

    scripts/bench/rank_loss.py MODEL.zse [--device cuda] [--gpus 0,1] [--stages] [--repeat 3]

A server of two ranks is asked for a long answer and its other rank is killed, or stopped: how long
until the client has its error, until the server is ready again (--restart-ranks), and until a
server without that option has ended. Seconds, the worst of all; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from child_processes import children_of
from machine import machine_facts
from mesh_gpu import Process, ask, free_port, wait_ready

LONG_TOKENS = 1500
UNDER_WAY_SECONDS = 0.5
MOST_SECONDS = 60.0
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpus", default="", help="0,0: two ranks in turns on one")
    parser.add_argument("--stages", action="store_true", help="of layers, not of each layer")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name, number in FAULTS.items():
        runs = [lose(options, number) for _ in range(options.repeat)]
        found[name] = {key: round(max(run[key] for run in runs), 3) for key in runs[0]}
        print(name, json.dumps(found[name]), flush=True)
    print(json.dumps({"bench": "rank_loss", "gpus": options.gpus, **found, **machine_facts()}))


def lose(options: argparse.Namespace, number: int) -> dict[str, float]:
    """Lose a rank of a server that begins anew, then one of a server that does not."""
    again = lost(options, number, "--restart-ranks")
    return {"error_s": again[0], "ready_again_s": again[1], "ended_s": lost(options, number)[1]}


def lost(options: argparse.Namespace, number: int, *flags: str) -> tuple[float, float]:
    """Return the seconds until the client's error, and until the server is ready or has ended."""
    port = free_port()
    kind = "--pipeline-parallel" if options.stages else "--tensor-parallel"
    words = ["zse.serve", options.model, "--port", str(port), "--device", options.device,
             kind, "2", "--max-running", "4", "--max-context", "2048", *flags]  # fmt: skip
    words += ["--gpus", options.gpus] if options.gpus else []
    with (
        tempfile.TemporaryDirectory() as folder,
        Process(Path(folder) / "server.log", words) as server,
    ):
        wait_ready(server, port)
        ask(port, 2)
        errors: list[float] = []
        asking = threading.Thread(target=until_error, args=(port, errors))
        asking.start()
        time.sleep(UNDER_WAY_SECONDS)
        [other] = children_of(server.process.pid)
        begun = time.monotonic()
        os.kill(other, number)
        asking.join(MOST_SECONDS)
        if flags:
            wait_ready(server, port)
        else:
            server.process.wait(MOST_SECONDS)
        over = time.monotonic() - begun
        return errors[0] - begun, over


def until_error(port: int, errors: list[float]) -> None:
    """Ask for a long answer; note when it was over, which is to be with an error."""
    try:
        words, _ = ask(port, LONG_TOKENS)
    except OSError as error:
        words = f"error: {error}"
    if not words.startswith("error"):
        raise SystemExit("the answer was written in spite of the loss")
    errors.append(time.monotonic())


if __name__ == "__main__":
    main()
