"""A mesh of GPU nodes on one host against one GPU: the same text, its speed, and a node that dies.

    scripts/bench/mesh_gpu.py MODEL.zse [--nodes 0/1] [--tokens 256] [--streams 16] [--kill rank]

--nodes has the GPUs of each node: 0/1 are two nodes, 0,1 is one whose layers two GPUs share, and
0,1/2,3 are two such. A GPU that is named twice takes turns, which shows that all of it works and
nothing of how fast two GPUs are. One server on the GPUs of the first node is compared with. All
compute with --deterministic, so that texts can be. In the midst of an answer the last node is
killed, or one of its ranks. Prints a line for each part, the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from child_processes import children_of
from machine import machine_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRET = "a secret of this benchmark"
START_SECONDS = 90.0
PROMPT = [5, 6, 7, 9]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Process:
    """A command whose words go to a file; ended with its block."""

    def __init__(self, log: Path, words: list[str]) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words], stdout=out, stderr=out,
                env={**os.environ, "ZSE_MESH_SECRET": SECRET},
            )  # fmt: skip

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]


def post(port: int, body: dict[str, Any], seconds: float = 120.0) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return {"error": error.read().decode(errors="replace")[:500]}


def wait_ready(server: Process, port: int, beside: Sequence[Process] = ()) -> float:
    """Wait until a server is ready; say what it, or what it needs beside it, said at its end."""
    begun = time.monotonic()
    while True:
        ended = [one for one in (server, *beside) if one.process.poll() is not None]
        if ended or time.monotonic() - begun > START_SECONDS:
            raise SystemExit(f"the server does not start: {(ended or [server])[0].last_words()}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=2).close()
            return time.monotonic() - begun
        except OSError:
            time.sleep(0.02)


def ask(port: int, tokens: int, number: int = 0) -> tuple[str, float]:
    """Return what was written and how long it took.

    Random models write tokens that no tokenizer has text for: their probabilities are compared.
    """
    begun = time.monotonic()
    body = {"prompt": [*PROMPT, 11 + number], "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "logprobs": 1}  # fmt: skip
    found = post(port, body)
    if "choices" not in found:
        return f"error: {found}", time.monotonic() - begun
    written = found["usage"]["completion_tokens"]
    if written != tokens:
        raise SystemExit(f"{written} tokens were written; {tokens} were asked for")
    return json.dumps(found["choices"][0]["logprobs"]["token_logprobs"]), time.monotonic() - begun


def measured(port: int, tokens: int, streams: int) -> dict[str, Any]:
    """Ask one stream, then several at once."""
    ask(port, 8)
    text, seconds = ask(port, tokens)
    texts: dict[int, str] = {}

    def one(number: int) -> None:
        texts[number] = ask(port, tokens, number)[0]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(streams)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = streams * tokens / (time.monotonic() - begun)
    return {
        "texts": [text, *(texts[number] for number in sorted(texts))],
        "one_stream_tokens_per_s": round(tokens / seconds, 1),
        "streams_tokens_per_s": round(rate, 1),
    }


def serve_words(options: argparse.Namespace, port: int) -> list[str]:
    return ["zse.serve", options.model, "--port", str(port), "--deterministic",
            "--prefill-weights", "make", "--max-context", "2048",
            "--max-running", str(max(options.streams, 4))]  # fmt: skip


def device_words(gpus: str) -> list[str]:
    """Return the flags of a node, or of a server, that computes on these."""
    count = 1 + gpus.count(",")
    shared = ["--tensor-parallel", str(count)] if count > 1 else []
    if gpus.startswith("cpu"):
        return ["--device", "cpu", *shared]
    return ["--device", "cuda", "--gpus", gpus, *shared] if shared else ["--device", f"cuda:{gpus}"]


def lose_a_node(
    options: argparse.Namespace, port: int, node: Process, expected: str
) -> dict[str, Any]:
    """Kill a node, or a rank of it, in the midst of an answer; return what came of that."""
    found: list[tuple[str, float]] = []
    asked = threading.Thread(target=lambda: found.append(ask(port, options.tokens)))
    asked.start()
    time.sleep(options.kill_after)
    ranks = children_of(node.process.pid)
    os.kill(ranks[0] if options.kill == "rank" else node.process.pid, signal.SIGKILL)
    asked.join()
    return {"same_text": found[0][0] == expected, "seconds": round(found[0][1], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--nodes", default="0/1", help="GPUs of each, or cpu, or cpu,cpu")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--memory-gib", type=float, default=20.0, help="of each node")
    parser.add_argument("--kill", choices=("node", "rank"), default="node")
    parser.add_argument("--kill-after", type=float, default=1.0, help="seconds; 0: kill nobody")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/zse-mesh-gpu"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    nodes_gpus, report = options.nodes.split("/"), {"nodes": options.nodes}
    with ExitStack() as running:
        port = free_port()
        words = [*serve_words(options, port), *device_words(nodes_gpus[0])]
        with Process(options.folder / "alone.log", words) as server:
            wait_ready(server, port)
            alone = measured(port, options.tokens, options.streams)
        texts = alone.pop("texts")
        report["alone"] = alone
        print("alone", json.dumps(alone), flush=True)
        nodes, addresses = [], []
        for number, gpus in enumerate(nodes_gpus):
            addresses.append(f"127.0.0.1:{free_port()}")
            words = ["zse", "mesh", "start", "--no-discovery", "--listen", addresses[-1],
                     "--name", f"n{number}", *device_words(gpus),
                     "--memory-gib", str(options.memory_gib)]  # fmt: skip
            nodes.append(
                running.enter_context(Process(options.folder / f"node{number}.log", words))
            )
        port = free_port()
        words = [*serve_words(options, port), "--device", "cpu", "--mesh", ",".join(addresses),
                 "--mesh-nodes", str(len(nodes_gpus)), "--mesh-split", "even",
                 "--mesh-wait", str(START_SECONDS)]  # fmt: skip
        front = running.enter_context(Process(options.folder / "front.log", words))
        ready = wait_ready(front, port, nodes)
        mesh = measured(port, options.tokens, options.streams)
        found = mesh.pop("texts")
        same = sum(a == b for a, b in zip(texts, found, strict=True))
        mesh |= {"ready_s": round(ready, 2), "same_texts": f"{same} of {len(texts)}"}
        report["mesh"] = mesh
        print("mesh", json.dumps(mesh), flush=True)
        if options.kill_after:
            time.sleep(2.0)  # until standbys have what they need
            report["killed"] = lose_a_node(options, port, nodes[-1], texts[0])
            print("killed", json.dumps(report["killed"]), flush=True)
            print("".join(line for line in front.last_words().splitlines(True) if "lost" in line))
    print(json.dumps({"bench": "mesh_gpu", **report, **machine_facts()}))


if __name__ == "__main__":
    main()
