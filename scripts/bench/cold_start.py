"""Process start to first streamed token over HTTP, with its phases, beside peers in one run.

Starts `python -m zse.serve` in a fresh process the way an image does, asks for one token by
streaming, measures decoding, stops it; repeats. Files are read once before, so that they are in
the page cache. On a CPU the peer is a bare `import torch`. On a GPU:

    python scripts/bench/cold_start.py /dev/shm/7b.zse --device cuda --peers hf-bnb,llama-server

Peers get random weights of the same shapes, made from the file's own config.json and kept in
--work. A peer that is not installed, or whose files would be too large, is reported as not run.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import object_server
from machine import machine_facts
from peers import PeerNotRunError, measure_peer
from timed_server import HOST, PROMPT_TOKENS, ROOT, Starts, measure_starts, spread, zse_server

sys.path.insert(0, str(ROOT))

from typing import TYPE_CHECKING

from zse.backends.resident import cached_attentions
from zse.format import ZSEReader
from zse.models.families import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.models.spec import ModelSpec

PEERS = ("import-torch", "hf-bnb", "llama-server")
CONTEXT_TOKENS = 4096
KV_ELEMENT_BYTES = {"cpu": 4, "cuda": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["tiny"], help=".zse files, or tiny")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peers", default="import-torch", help=f"of {','.join(PEERS)}; or none")
    parser.add_argument("--work", type=Path, help="folder for the peers' files, kept")
    parser.add_argument("--llama-server", default="llama-server", help="its executable")
    parser.add_argument("--gguf-kind", default="q4_k", choices=("q4_k", "q4_0"))
    parser.add_argument(
        "--settle-seconds", type=float, default=4.0, help="that the first, uncounted server lives"
    )
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS)
    parser.add_argument(
        "--asks",
        choices=("ready", "at-once"),
        default="ready",
        help="ask once the server is ready; or from the first moment on, until it answers",
    )
    parser.add_argument(
        "--line-gigabits",
        type=float,
        default=0.0,
        help="read the file from an object server behind a line of this width, on a GPU",
    )
    parser.add_argument("--serve-arguments", default="", help="more flags of our server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zse-cold-") as folder:
        work = options.work or Path(folder)
        results = [measure(name, work, options) for name in options.models]
    facts = {"subject": "cold_start", **machine_facts()}
    print(json.dumps({**facts, "num_runs": options.repeat, "models": results}))


def measure(name: str, work: Path, options: argparse.Namespace) -> dict[str, object]:
    """Measure one model and its peers; print a table, return what it holds."""
    model = zse_file(name, work)
    read_through(model)
    with ZSEReader(model) as reader:
        spec = read_header(reader.header.model_config)
        settings = json.loads(bytes(reader.section("config.json")))
    kind = options.device.partition(":")[0]
    arguments = [f"--max-context={min(CONTEXT_TOKENS, spec.max_position)}"]
    if kind == "cuda":
        arguments.append(f"--kv-gib={kv_gib(spec, kind):.4f}")
    arguments += shlex.split(options.serve_arguments)
    with origin_of(model, options.line_gigabits) as named:
        server = replace(
            zse_server(named, device=options.device, arguments=arguments),
            prompt_tokens=options.prompt_tokens,
            asks=options.asks,
        )
        found = measure_starts(
            server,
            repeat=options.repeat,
            vocabulary=spec.vocab_size,
            settle_seconds=options.settle_seconds,
        )
    ours = summary(found)
    if options.line_gigabits:
        ours["line_ms"] = round(model.stat().st_size / (options.line_gigabits * 1e9 / 8) * 1000, 1)
        print(f"the line alone takes {ours['line_ms']} ms")
    print(f"\n{name}: {model.stat().st_size / 1e9:.2f} GB on {options.device}")
    print_summary("zse", ours)
    peers: dict[str, object] = {}
    for peer in [p for p in options.peers.split(",") if p not in ("", "none")]:
        try:
            if peer == "import-torch":
                found = import_torch(options.repeat)
            else:
                found = measure_peer(
                    peer,
                    settings,
                    work=work,
                    repeat=options.repeat,
                    vocabulary=spec.vocab_size,
                    llama_server=options.llama_server,
                    gguf_kind=options.gguf_kind,
                )
            print_summary(peer, found)
            times = found["first_token_ms_p50"] / ours["first_token_ms_p50"]
            print(f"{peer} takes {times:.1f} times as long")
            peers[peer] = {**found, "times_ours": round(times, 2)}
        except PeerNotRunError as error:
            print(f"{peer}: not run: {error}")
            peers[peer] = {"not_run": str(error)}
    return {"model": name, "file_bytes": model.stat().st_size, "zse": ours, "peers": peers}


@contextmanager
def origin_of(model: Path, gigabits: float) -> Iterator[Path | str]:
    """Yield the file, or its address behind a line that is so wide."""
    if not gigabits:
        yield model
        return
    with object_server.serving(model, gigabits) as port:
        yield f"http://{HOST}:{port}/model.zse"


def zse_file(name: str, work: Path) -> Path:
    """Return a .zse file; a built-in is converted."""
    if Path(name).is_file():
        return Path(name)
    from zse.quantize.locate import locate_model
    from zse.settings import Settings

    return locate_model(name, Settings(cache_dir=work), quant="int8")


def read_through(path: Path) -> None:
    """Read a file once, so that it is in the page cache; in /dev/shm it is there."""
    if path.resolve().is_relative_to("/dev/shm"):
        return
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(16 << 20)
        while file.readinto(buffer):
            pass


def kv_gib(spec: ModelSpec, kind: str) -> float:
    """Return the KV memory of one sequence of the context, and a block more."""
    tokens = CONTEXT_TOKENS + 32
    values = 2 * sum(attention.kv_columns for attention in cached_attentions(spec).values())
    return tokens * values * KV_ELEMENT_BYTES[kind] / (1 << 30)


def summary(found: Starts) -> dict[str, object]:
    """Return medians, least and most over the starts."""
    result: dict[str, object] = {}
    for phase in found.starts[0].milestones:
        name = phase.replace("-", "_")
        for key, value in spread([start.milestones[phase] for start in found.starts]).items():
            result[f"{name}_ms_{key}"] = value
    result["ledger_end_ms_p50"] = {
        name: round(
            statistics.median(s.ledger[name].end_ms for s in found.starts if name in s.ledger), 1
        )
        for name in found.starts[-1].ledger
    }
    result["decode_tokens_per_second"] = round(found.decode_tokens_per_second, 1)
    result["gpu_bytes"] = found.gpu_bytes
    return result


def print_summary(name: str, result: dict[str, object]) -> None:
    print(f"{name:<20} {'median ms':>10} {'min':>8} {'max':>8}")
    for key, value in result.items():
        if key.endswith("_ms_p50") and not isinstance(value, dict):
            phase = key.removesuffix("_ms_p50")
            low, high = (result.get(f"{phase}_ms_{end}", value) for end in ("min", "max"))
            print(f"  {phase:<18} {value:>10.0f} {low:>8.0f} {high:>8.0f}")
    for phase, value in result.get("ledger_end_ms_p50", {}).items():
        print(f"    ledger {phase:<11} {value:>10.1f}")
    if speed := result.get("decode_tokens_per_second"):
        print(f"  {'decode tok/s':<18} {speed:>10.1f}")
    if held := result.get("gpu_bytes"):
        print(f"  {'GPU memory GB':<18} {held / 1e9:>10.2f}")


def import_torch(repeat: int) -> dict[str, float]:
    """Return what a bare ``import torch`` takes in a fresh process."""
    values = []
    for _ in range(repeat):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", "import torch"], check=False)
        values.append((time.perf_counter() - began) * 1000)
        if done.returncode:
            raise PeerNotRunError("torch is not installed")
    return {f"first_token_ms_{key}": value for key, value in spread(values).items()}


if __name__ == "__main__":
    main()
