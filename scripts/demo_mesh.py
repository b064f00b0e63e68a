"""Four nodes compute one model; one is killed in the midst of an answer: ``scripts/demo --mesh``.

The same question is asked twice. The second time a node is killed when a fifth of the answer is
there. Both texts are shown to be the same, and how long the pause was.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

NODES = 4
TOKENS = 240
PROMPT = "The capital of France is"
_READY_SECONDS = 120.0
_STOP_SECONDS = 10.0


def say(words: str) -> None:
    print(words, flush=True)


class Processes:
    """Children of the demo, whose output goes to files; all end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "ZSE_MESH_SECRET": secrets.token_hex(32),
            "ZSE_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [sys.executable, "-m", "zse", *words],
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def wait_for(self, name: str, words: str) -> str:
        """Return the line of a log in which some words stand."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            for line in (self._folder / f"{name}.log").read_text().splitlines():
                if words in line:
                    return line
            if self.started[name].poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit(f"{name} did not start:\n{(self._folder / f'{name}.log').read_text()}")

    def close(self) -> None:
        for process in self.started.values():
            process.terminate()
        for process in self.started.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Answer:
    """A streamed answer: its pieces and when each came."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.times: list[float] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def longest_pause_ms(self) -> float:
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0) * 1e3


def ask(url: str, kill: subprocess.Popen[bytes] | None = None) -> Answer:
    """Ask for a long answer; kill a process when a fifth of it is there."""
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0.7,
        "seed": 11,
        "ignore_eos": True,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = Answer()
    with urllib.request.urlopen(request, timeout=60) as response:
        read_events(response, answer, kill)
    return answer


def read_events(lines: IO[bytes], answer: Answer, kill: subprocess.Popen[bytes] | None) -> None:
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise SystemExit(f"the answer broke off: {event['error']}")
        text = "".join(choice.get("text", "") for choice in event.get("choices", ()))
        if text:
            answer.pieces.append(text)
            answer.times.append(time.monotonic())
        if kill is not None and len(answer.pieces) == TOKENS // 5:
            kill.send_signal(signal.SIGKILL)
            kill = None


def main() -> int:
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="zse-mesh-")))
        processes = Processes(folder)
        cleanup.callback(processes.close)
        names = [f"n{number}" for number in range(NODES)]
        for name in names:
            words = ["--listen", "127.0.0.1:0", "--threads", "1", "--no-discovery"]
            processes.start(name, "mesh", "start", "--name", name, *words)
        addresses = [processes.wait_for(name, " listens at ").rpartition(" ")[2] for name in names]
        say(f"{NODES} nodes: {', '.join(addresses)}")
        where = ["--mesh", ",".join(addresses), "--mesh-nodes", str(NODES), "--mesh-split", "even"]
        usual = ["--port", "0", "--deterministic", "--log-format", "json"]
        processes.start("front", "serve", "tiny", *where, *usual)
        ready = json.loads(processes.wait_for("front", '"message": "ready"'))
        url = ready["url"]
        say(f"a front end at {url}: each node has a layer of the model")
        whole = ask(url)
        say(f"\nan answer, {len(whole.text)} characters, from all four nodes:")
        say(f"  {whole.text[:70]!r} ...")
        say(f"  longest pause: {whole.longest_pause_ms:.0f} ms")
        time.sleep(0.5)  # the standbys have what that answer has written
        say("\nthe same question, and n1 is killed (SIGKILL) when a fifth is there:")
        broken = ask(url, kill=processes.started["n1"])
        say(f"  {broken.text[:70]!r} ...")
        say(f"  longest pause: {broken.longest_pause_ms:.0f} ms")
        if processes.started["n1"].wait(_STOP_SECONDS) != -signal.SIGKILL:
            raise SystemExit("n1 was not killed")
        is_same = whole.text == broken.text
        say(f"\n{'the same text' if is_same else 'ANOTHER TEXT'}, with three nodes left")
        return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
