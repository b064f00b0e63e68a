"""A walk through zse on the built-in model: what ``scripts/demo --tour`` shows, step by step.

Every step is a command that is printed and really run; Enter goes on. Nothing is left behind but
what was asked for with ``--work``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SECONDS = 60
SYSTEM = "You answer questions about countries in one sentence.\n"
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 12}},
    "required": ["capital"],
}
BOLD, PLAIN = "\033[1m", "\033[0m"


@dataclass(frozen=True)
class Step:
    """One command and what it shows."""

    words: str
    command: list[str]
    most_lines: int = 14


class Tour:
    """Prints, waits, runs.

    Args:
        folder: Where files of the tour lie; the commands run there.
        is_paced: Whether Enter is waited for before each step.
    """

    def __init__(self, folder: Path, *, is_paced: bool) -> None:
        self._folder = folder
        self._is_paced = is_paced
        self._zse = Path(sys.executable).parent / "zse"
        self._environment = {**os.environ, "ZSE_HOME": str(folder / "home"), "COLUMNS": "120"}

    def show(self, step: Step) -> None:
        """Say what comes, run it, and print what it said.

        Raises:
            SystemExit: The command failed.
        """
        self._announce(step)
        done = subprocess.run(
            self._argv(step.command), cwd=self._folder, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        lines = done.stdout.rstrip().splitlines()
        print("\n".join(line[:160] for line in lines[: step.most_lines]))
        if len(lines) > step.most_lines:
            print(f"... {len(lines) - step.most_lines} more lines")
        if done.returncode:
            sys.exit(f"error: that ended with code {done.returncode}")

    @contextmanager
    def server(self, step: Step, url: str) -> Iterator[None]:
        """Start a server, wait until it is ready, and stop it at the end."""
        self._announce(step)
        log = (self._folder / "server.log").open("w")
        began = time.monotonic()
        child = subprocess.Popen(
            self._argv(step.command), cwd=self._folder, env=self._environment,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            while not _is_ready(url):
                if child.poll() is not None or time.monotonic() - began > READY_SECONDS:
                    sys.exit(f"error: no server:\n{(self._folder / 'server.log').read_text()}")
                time.sleep(0.02)
            print(f"ready after {(time.monotonic() - began) * 1000:.0f} ms, Python and all")
            yield
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(timeout=60)
            log.close()

    def _announce(self, step: Step) -> None:
        is_terminal = sys.stdout.isatty()
        print(f"\n{BOLD if is_terminal else ''}{step.words}{PLAIN if is_terminal else ''}")
        print(f"$ {shlex.join(step.command)}", flush=True)
        if self._is_paced:
            input()

    def _argv(self, command: list[str]) -> list[str]:
        return [str(self._zse), *command[1:]] if command[0] == "zse" else command


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _chat(url: str, text: str, **fields: object) -> list[str]:
    body = {"model": "default", "messages": [{"role": "user", "content": text}], **fields}
    return ["curl", "-s", f"{url}/v1/chat/completions", "-d", json.dumps(body)]


def walk(tour: Tour, url: str, port: int) -> None:
    """Show it all."""
    for words, command in (
        ("What is this machine, and what fits into it?", ["zse", "hardware"]),
        ("A checkpoint becomes one file, in four bits.",
         ["zse", "convert", "tiny", "--quant", "int4", "-o", "tiny.zse", "--force"]),
        ("What is in it, and is every byte right?", ["zse", "inspect", "tiny.zse", "--verify"]),
        ("The file can hold a prompt that is already computed.",
         ["zse", "prefix", "add", "tiny.zse", "--system", "system.txt"]),
    ):  # fmt: skip
        tour.show(Step(words, command))
    served = ["zse", "serve", "tiny.zse", "--port", str(port), "--tools", "all"]
    with tour.server(Step("A server, asleep a second ago.", served), url):
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        asked = "What is the capital of France?"
        limit = {"max_tokens": 24, "temperature": 0}
        for words, command in (
            ("It speaks OpenAI's protocol.", _chat(url, asked, **limit)),
            ("Answers can be held to a schema.", _chat(url, asked, response_format=form, **limit)),
            ("Tools run where the operator said so.",
             ["curl", "-s", f"{url}/api/tools/execute", "-d",
              json.dumps({"name": "calculator", "arguments": {"expression": "6 * 7"}})]),
            ("What is it doing?", ["zse", "top", url, "--once"]),
        ):  # fmt: skip
            tour.show(Step(words, command))
    tour.show(
        Step(
            "What would a 7B cost, asleep or awake?",
            ["zse", "cost", "--memory-gib", "5.5", "-r", "30"],
            16,
        )
    )
    print("\nNext: scripts/demo builds the image and starts it; zse --help lists the rest.")


def main() -> None:
    parser = argparse.ArgumentParser(description="A walk through zse on the built-in model.")
    parser.add_argument("--work", type=Path, help="keep the files of the tour in this folder")
    parser.add_argument("--no-pause", action="store_true", help="do not wait for Enter")
    options = parser.parse_args()
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="zse-tour-") as scratch:
        folder = (options.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "system.txt").write_text(SYSTEM)
        is_paced = not options.no_pause and sys.stdin.isatty()
        walk(Tour(folder, is_paced=is_paced), f"http://127.0.0.1:{port}", port)


if __name__ == "__main__":
    main()
