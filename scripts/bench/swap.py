"""Models that change places in a living server, and sleep: times to the first token, and memory.

Starts one server with --models and --max-resident 1, and asks it for one streamed token of the
models in turn: each request swaps. Beside it stands the same request for the model that is there,
and the server's own part of a swap from /metrics. Then the server sleeps, on both levels, and is
woken; memory is what the GPU says (nvidia-smi) or the process's resident set. On a GPU:

    python scripts/bench/swap.py /dev/shm/a.zse /dev/shm/b.zse --device cuda

With one file, a copy by another name stands for the second model. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cold_start import read_through, zse_file
from machine import machine_facts
from timed_server import HOST, PROMPT_TOKENS, ROOT, prompt_ids, spread, used_gpu_bytes

sys.path.insert(0, str(ROOT))

from zse.format import ZSEReader
from zse.models.families import read_header
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SECONDS = 120
SETTLE_SECONDS = 0.5
"""Until the driver shows what a process has given back."""
CONTEXT_TOKENS = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["tiny"], help=".zse files, or tiny")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeat", type=int, default=5, help="swaps of each model")
    parser.add_argument("--serve-arguments", default="", help="more flags of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zse-swap-") as folder:
        files = [zse_file(name, Path(folder)) for name in options.models]
        names = {chr(ord("a") + index): path for index, path in enumerate(files * 2)}
        result = measure(dict(list(names.items())[: max(2, len(files))]), options)
    print_tables(result)
    print(json.dumps({"subject": "swap", **machine_facts(), **result}))


def measure(files: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """Measure swaps, then sleep, in one server."""
    vocabulary = {name: prepare(path) for name, path in files.items()}
    used_before = used_gpu_bytes()
    with served(files, options) as server:
        found: dict[str, Any] = {"device_name": options.device, "models": {}}
        swaps: dict[str, list[float]] = {name: [] for name in files}
        stays: dict[str, list[float]] = {name: [] for name in files}
        for round_index in range(options.repeat + 1):
            for name in files:
                swap = server.first_token_ms(name, vocabulary[name], 4 * round_index)
                stay = server.first_token_ms(name, vocabulary[name], 4 * round_index + 1)
                if round_index:  # the first round loads each for the first time
                    swaps[name].append(swap)
                    stays[name].append(stay)
        for name, path in files.items():
            found["models"][name] = {
                "file": path.name,
                "file_bytes": path.stat().st_size,
                **{f"swap_first_token_ms_{key}": one for key, one in spread(swaps[name]).items()},
                **{f"stay_first_token_ms_{key}": one for key, one in spread(stays[name]).items()},
                "swap_in_server_ms_mean": server.swap_ms(name),
                "ledger_ms_p50": server.ledger(name, skip=1),
                "load": server.last_load(),
            }
        found["sleep"] = [
            server.sleep(level, vocabulary, gpu_bytes_before=used_before) for level in (1, 2)
        ]
    return found


def prepare(path: Path) -> int:
    """Bring a file into the page cache; return how many tokens its model knows."""
    read_through(path)
    with ZSEReader(path) as reader:
        return read_header(reader.header.model_config).vocab_size


class Server:
    """A server that is ready."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, names: list[str], log: Path
    ) -> None:
        self._process = process
        self._port = port
        self._names = names
        self._log = log

    def first_token_ms(self, name: str, vocabulary: int, variant: int) -> float:
        """Return how long one streamed token of a model takes, from the request on.

        Prompts are of several lengths, as those of people are.
        """
        body = {
            "model": name,
            "prompt": prompt_ids(PROMPT_TOKENS - variant % 7, vocabulary, variant),
            "max_tokens": 1,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        began = time.perf_counter()
        with self._ask("POST", "/v1/completions", body) as response:
            response.readline()  # the first event is the token
            took = time.perf_counter() - began
            response.read()
        return took * 1000

    def swap_ms(self, name: str) -> float:
        """Return the mean of what a swap took by the server's own clock."""
        with self._ask("GET", "/metrics") as response:
            lines = response.read().decode().splitlines()
        values = {
            kind: float(line.rpartition(" ")[2])
            for kind in ("sum", "count")
            for line in lines
            if line.startswith(f'zse_model_swap_seconds_{kind}{{model="{name}"}}')
        }
        return round(1000 * values["sum"] / max(1.0, values["count"]), 1)

    def ledger(self, name: str, *, skip: int) -> dict[str, list[float]]:
        """Return when each phase of a swap began and ended, in ms, medians of all but the first."""
        lines = [json.loads(line) for line in self._log.read_bytes().splitlines() if line]
        swaps = [
            line["swap_ms"]
            for line in lines
            if line["message"] == "model brought" and line["model"] == name
        ][skip:]
        found = {}
        for phase in swaps[-1] if swaps else ():
            times = [one[phase] for one in swaps if phase in one]
            found[phase] = [
                round(statistics.median(one[key] for one in times), 1)
                for key in ("start_ms", "end_ms")
            ]
        return dict(sorted(found.items(), key=lambda item: item[1][1]))

    def last_load(self) -> dict[str, Any]:
        """Return what the log says of the last weights that came."""
        lines = [json.loads(line) for line in self._log.read_bytes().splitlines() if line]
        told = [line for line in lines if line["message"] == "weights are on the GPU"]
        of = ("gigabytes", "milliseconds", "milliseconds_of_a_thread")
        return {key: told[-1][key] for key in of} if told else {}

    def sleep(
        self, level: int, vocabulary: dict[str, int], *, gpu_bytes_before: int
    ) -> dict[str, Any]:
        """Put the server to sleep and wake it; return times in ms, and bytes held."""
        name = self._names[-1]
        self.first_token_ms(name, vocabulary[name], 1000 + level)
        awake, sleep_ms = self._held(gpu_bytes_before), self._post_ms(f"/sleep?level={level}")
        asleep, wake_ms = self._held(gpu_bytes_before), self._post_ms("/wake_up")
        return {
            "level": level,
            "sleep_ms": sleep_ms,
            "wake_ms": wake_ms,
            "first_token_ms": round(self.first_token_ms(name, vocabulary[name], 2000 + level), 1),
            **{f"awake_{key}": value for key, value in awake.items()},
            **{f"asleep_{key}": value for key, value in asleep.items()},
        }

    def _held(self, gpu_bytes_before: int) -> dict[str, int]:
        time.sleep(SETTLE_SECONDS)
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "gpu_bytes": max(0, used_gpu_bytes() - gpu_bytes_before),
            "resident_bytes": int(fields["VmRSS"].split()[0]) << 10,
            "anonymous_bytes": int(fields["RssAnon"].split()[0]) << 10,
        }

    def _post_ms(self, path: str) -> float:
        began = time.perf_counter()
        with self._ask("POST", path) as response:
            response.read()
        return round((time.perf_counter() - began) * 1000, 1)

    @contextmanager
    def _ask(
        self, method: str, path: str, body: object = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=READY_SECONDS)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise RuntimeError(f"{path}: {response.status} {response.read()[:500]!r}")
            yield response
        finally:
            connection.close()


@contextmanager
def served(files: dict[str, Path], options: argparse.Namespace) -> Iterator[Server]:
    """Start the server and wait until it is ready; its log goes where ours goes."""
    more = shlex.split(options.serve_arguments)
    command = [sys.executable, "-m", "zse.serve", "--device", options.device, "--port", "0"]
    command += [f"--models={name}={path}" for name, path in files.items()]
    command += ["--max-resident", "1", "--log-format", "json", *more]
    if "--max-context" not in options.serve_arguments:
        with ZSEReader(next(iter(files.values()))) as reader:
            most = read_header(reader.header.model_config).max_position
        command += ["--max-context", str(min(CONTEXT_TOKENS, most))]
    with tempfile.NamedTemporaryFile() as log:
        paths = dict.fromkeys([str(ROOT), *filter(None, sys.path)])  # where our packages are, too
        environment = subprocess_environment(PYTHONPATH=os.pathsep.join(paths))
        process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            port = wait_until_ready(process, log)
            yield Server(process, port, list(files), Path(log.name))
        finally:
            process.terminate()
            process.wait(READY_SECONDS)


def wait_until_ready(process: subprocess.Popen[bytes], log: IO[bytes]) -> int:
    """Return the port that the log names, once the log says ready."""
    deadline, port, lines = time.monotonic() + READY_SECONDS, 0, b""
    while time.monotonic() < deadline and process.poll() is None:
        log.seek(0)
        lines = log.read()
        for line in lines.splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            port = told.get("port", port) if told["message"] == "listening" else port
            if told["message"] == "ready":
                return int(port)
        time.sleep(0.05)
    raise RuntimeError(f"the server did not become ready:\n{lines.decode()[-2000:]}")


def print_tables(result: dict[str, Any]) -> None:
    print(
        f"{'first token, ms':<28} {'GB':>7} {'median':>8} {'min':>8} {'max':>8} {'in server':>10}"
    )
    for name, one in result["models"].items():
        for kind, told in (("swap", one["swap_in_server_ms_mean"]), ("stay", "")):
            times = [one[f"{kind}_first_token_ms_{key}"] for key in ("p50", "min", "max")]
            cells = [f"{one['file_bytes'] / 1e9:.2f}", *times, told]
            print(f"{name} {one['file'][:18]:<18} {kind:<7}", *(f"{cell:>8}" for cell in cells))
    for name, one in result["models"].items():
        phases = ", ".join(
            f"{phase} {began:g}-{ended:g}" for phase, (began, ended) in one["ledger_ms_p50"].items()
        )
        print(f"{name} ledger, ms: {phases}; load: {one['load']}")
    print(f"{'sleep':<8} {'sleep ms':>9} {'wake ms':>9} {'token ms':>9}  held awake -> asleep, MB")
    for one in result["sleep"]:
        held = ", ".join(
            f"{kind} {one[f'awake_{kind}'] / 1e6:,.0f} -> {one[f'asleep_{kind}'] / 1e6:,.0f}"
            for kind in ("gpu_bytes", "resident_bytes", "anonymous_bytes")
        )
        print(
            f"level {one['level']:<2} {one['sleep_ms']:>9} {one['wake_ms']:>9} "
            f"{one['first_token_ms']:>9}  {held}"
        )


if __name__ == "__main__":
    main()
