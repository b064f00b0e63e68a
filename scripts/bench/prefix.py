"""A prefix of 8,000 tokens to the first token: computed, from the file, from before the restart.

Starts a server three ways and asks it for one streamed token of the same long prompt, the moment it
says that it is ready: with nothing kept, with the prefix in the file, with what the server before
kept in a folder. A copy of the file gets the prefix. On a GPU:

    python scripts/bench/prefix.py /dev/shm/a.zse --device cuda --kv-dtype int8

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cold_start import read_through, zse_file
from machine import machine_facts
from timed_server import HOST, ROOT, prompt_ids, spread, zse_server

sys.path.insert(0, str(ROOT))

from zse.engine.loading import load_model
from zse.engine.prefixes.adding import computed_prefix
from zse.format.append import append_section
from zse.option import with_values
from zse.settings import load_settings

READY_SECONDS = 120
OWN_TOKENS = 24
"""Of the request, behind the prefix."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="tiny", help="a .zse file, or tiny")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zse-prefix-", dir=_folder()) as folder:
        result = measure(Path(folder), options)
    for way, found in result["ways"].items():
        print(
            f"{way:<10} first token {found['first_token_ms']['p50']:>8} ms after ready, "
            f"start to first token {found['start_to_token_ms']['p50']:>8} ms, "
            f"{found['cached_tokens']} tokens were there"
        )
    print(json.dumps({"subject": "prefix", **machine_facts(), **result}))


def _folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    plain = zse_file(options.model, folder)
    with_prefix = folder / "with-prefix.zse"
    shutil.copy(plain, with_prefix)
    prompt, facts = add_prefix(with_prefix, options)
    store = ["--prefix-store", str(folder / "kept")]
    starts = {"computed": (plain, []), "file": (with_prefix, []), "store": (plain, store)}
    measure_once(plain, store, prompt, options)  # warms up, and leaves what "store" finds
    ways: dict[str, Any] = {}
    for way, (path, more) in starts.items():
        read_through(path)
        found = [measure_once(path, more, prompt, options) for _ in range(options.repeat)]
        ways[way] = {
            "first_token_ms": spread([one["first_token_ms"] for one in found]),
            "start_to_token_ms": spread([one["start_to_token_ms"] for one in found]),
            "cached_tokens": found[-1]["cached_tokens"],
            "text_is_equal": len({one["text"] for one in found}) == 1,
            "text": found[-1]["text"],
        }
    return {"model": options.model, "kv_dtype": options.kv_dtype, **facts, "ways": ways}


def add_prefix(path: Path, options: argparse.Namespace) -> tuple[list[int], dict[str, Any]]:
    """Compute a prefix of token ids and put it into a file; return the prompt that begins so."""
    settings = load_settings()
    values = {
        "device": options.device,
        "kv_dtype": options.kv_dtype,
        "max_context": options.tokens + 512,
        "max_sequences": 1,
    }
    load = with_values(settings.serve.load, values)
    model = load_model(path, load, settings)
    try:
        vocabulary = model.core.runner.vocab_size
        tokens = prompt_ids(options.tokens, vocabulary, 1)
        began = time.perf_counter()
        section, data = computed_prefix(model, tokens, load.device, "bench")
        seconds = time.perf_counter() - began
    finally:
        model.close()
    append_section(path, section, data)
    facts = {"section_bytes": len(data), "computed_and_packed_seconds": round(seconds, 2)}
    return [*tokens, *prompt_ids(OWN_TOKENS, vocabulary, 2)], facts


def measure_once(
    path: Path, more: list[str], prompt: list[int], options: argparse.Namespace
) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    arguments = ["--kv-dtype", options.kv_dtype, "--max-context", str(options.tokens + 512), *more]
    server = zse_server(path, device=options.device, arguments=arguments)
    began = time.perf_counter()
    process = subprocess.Popen(server.command(port), stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(port, server.ready_path)
        ready = time.perf_counter()
        text, cached, first = ask(port, server.path, server.body(prompt, 1, True))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    return {
        "first_token_ms": 1000 * (first - ready),
        "start_to_token_ms": 1000 * (first - began),
        "cached_tokens": cached,
        "text": text,
    }


def wait_until_ready(port: int, path: str) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", path)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.001)
    raise RuntimeError("the server was not ready in time")


def ask(port: int, path: str, body: dict[str, Any]) -> tuple[str, int, float]:
    """Return the streamed token, how many of the prompt's were there, and when it came."""
    body = {**body, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(HOST, port, timeout=READY_SECONDS)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    text, cached, first = "", 0, 0.0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        first = first or time.perf_counter()
        event = json.loads(line[6:])
        text += "".join(choice["text"] for choice in event["choices"])
        if usage := event.get("usage"):
            cached = usage["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    return text, cached, first


if __name__ == "__main__":
    main()
