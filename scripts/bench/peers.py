"""One replica becomes two: process start to first token, fed by the origin and by a replica.

An object server on this machine stands for the origin. The first server is fed from it and shares;
then the second one starts several times: from the origin, from the first over a wire, from the file
itself, which a host that has it in its page cache need not ask anybody for, and on a GPU from the
first one's GPU memory. On two GPUs of a host:

    python scripts/bench/peers.py /dev/shm/a.zse --devices cuda:0,cuda:1

Both may be on one card, which has to have room for both caches (--serve-arguments "--kv-gib 1"):
what comes over the host's loopback crosses the same link then, and memory is copied in its place.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import object_server
from cold_start import read_through, zse_file
from machine import machine_facts
from prefix import ask, wait_until_ready
from timed_server import BOOT, HOST, ROOT, prompt_ids, spread

sys.path.insert(0, str(ROOT))

from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="tiny", help="a .zse file, or tiny")
    parser.add_argument("--devices", default="cpu,cpu", help="of the first and of the second")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--serve-arguments", default="", help="more flags of both servers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zse-peers-", dir=_folder()) as folder:
        result = measure(Path(folder), options)
    for way, found in result["ways"].items():
        print(f"{way:<8} start to first token {found['start_to_token_ms']['p50']:>8} ms")
    print(json.dumps({"subject": "peers", **machine_facts(), **result}))


def _folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    path = zse_file(options.model, folder)
    read_through(path)
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(16))
    first_device, second_device = options.devices.split(",")
    ways: dict[str, Any] = {}
    with object_server.serving(path) as port:
        origin = [f"http://{HOST}:{port}/model.zse", "--peer-secret-file", str(secret)]
        origin += shlex.split(options.serve_arguments)
        sharing = [*origin, "--share-weights", "--share-port", "0", "--device", first_device]
        with started(sharing, folder / "first") as first:
            peer = f"http://{HOST}:{first.logged('weights are shared', 'port')}"
            here, over_wire = [str(path), *origin[1:]], ["--peer", peer, "--share-memory", "off"]
            ways_to = {"origin": origin, "replica": [*origin, *over_wire], "file": here}
            if "cpu" not in options.devices:
                first.logged("weights are lent to replicas on this host", "time")
                ways_to["memory"] = [*here, "--peers-from", "host"]
            for way, named in ways_to.items():
                found, sources = [], []
                for number in range(options.repeat):
                    words = [*named, "--device", second_device]
                    began = time.perf_counter()
                    with started(words, folder / f"{way}{number}") as second:
                        found.append(1000 * (second.first_token() - began))
                        sources.append(second.source() if "cpu" not in second_device else "file")
                ways[way] = {"start_to_token_ms": spread(found), "sources": sources}
    return {"model": options.model, "file_bytes": path.stat().st_size, "ways": ways}


class Server:
    """A server whose log lies in a file."""

    def __init__(self, port: int, log: Path) -> None:
        self._port, self._log = port, log

    def first_token(self) -> float:
        """Return when the first token came, once the server says that it is ready."""
        wait_until_ready(self._port, "/health/ready")
        body = {"model": "default", "prompt": prompt_ids(32, 1000, 1), "max_tokens": 1}
        return ask(self._port, "/v1/completions", {**body, "temperature": 0, "stream": True})[2]

    def source(self) -> dict[str, Any]:
        """Return where its weights came from, and how fast."""
        keys = "source", "milliseconds", "milliseconds_of_a_thread"
        return {key: self.logged("weights are on the GPU", key) for key in keys}

    def logged(self, message: str, key: str) -> Any:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            for line in self._log.read_text().splitlines():
                if line.startswith("{") and (facts := json.loads(line))["message"] == message:
                    return facts[key]
            time.sleep(0.05)
        raise RuntimeError(f"no line says {message!r}: {self._log.read_text()[-2000:]}")


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[Server]:
    folder.mkdir()
    log = folder / "log"
    # A CPU finds what it fetched before; a GPU finds its kernels.
    own = {"ZSE_CACHE_DIR": str(folder / "cache")} if "cpu" in words else {}
    environment = subprocess_environment(ZSE_LOG_FORMAT="json", **own)
    paths = [str(ROOT), *(path for path in sys.path if path and path != str(ROOT))]
    boot = [sys.executable, "-I", "-S", "-c", BOOT.format(paths=paths)]  # as an image starts it
    command = [*boot, *words, "--port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, env=environment)
    try:
        server = Server(0, log)
        yield Server(int(server.logged("listening", "port")), log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
