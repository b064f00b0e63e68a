"""Servers that a load test starts, each alone on the machine's cores while it is measured."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from zse.settings import subprocess_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

READY_SECONDS = 300


def commands_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return a command line for each server to start, with ``{port}`` in it."""
    context, threads = str(options.context), str(options.threads)
    commands = {}
    if options.zse:
        commands["zse"] = [
            *(sys.executable, "-m", "zse.serve", options.zse, "--port", "{port}"),
            *("--threads", threads, "--max-context", context, "--log-level", "error"),
        ]
    if options.llama and not options.llama_server:
        commands["llama-cpp-python"] = [
            *(options.llama_python, "-m", "llama_cpp.server", "--model", options.llama),
            *("--port", "{port}", "--n_threads", threads, "--n_threads_batch", threads),
            *("--n_ctx", context, "--interrupt_requests", "False", "--verbose", "False"),
        ]
    if options.llama_server:
        slots = str(options.slots)
        commands["llama-server"] = [
            *(options.llama_server, "-m", options.llama, "--host", "127.0.0.1", "--port", "{port}"),
            *("-t", threads, "-tb", threads, "-np", slots, "--log-disable"),
            *("-c", str(options.context * options.slots)),
        ]
    return commands


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[str]:
    """Start a server; yield its base URL when it answers."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as home:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        process = subprocess.Popen(
            [word.format(port=port) for word in command],
            env=subprocess_environment(HOME=home),  # keys of whoever runs this are not ours
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if command[0].endswith("llama-server") else None,
        )
        try:
            _wait_until_ready(process, port)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise SystemExit("the server did not become ready")
