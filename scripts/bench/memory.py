"""What a model really takes of a GPU, or stays resident on a CPU, beside what is estimated.

    python scripts/bench/memory.py --like qwen2.5-7b,qwen2.5-32b --device cuda
    python scripts/bench/memory.py --file tiny.zse --device cpu --context 512

Each model, of random weights unless a file is named, is loaded by a process of its own with a KV
cache for one sequence of the context. It answers a prompt as long as one step takes, so that every
buffer has been as large as it gets. On a GPU the driver says what is used before and then; on a CPU
the system says how much was resident at most; of the cache counts what was written. Prints a
table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from engine_runs import whole_numbers
from machine import machine_facts
from make_model import make_model

from zse.engine import meter
from zse.engine.requirements import read_facts
from zse.models.memory import estimate_memory
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

OUTPUT_TOKENS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", default="", help="shapes, separated by commas")
    parser.add_argument("--file", type=Path, action="append", default=[], help="a .zse file")
    parser.add_argument("--quant", default="int4")
    parser.add_argument("--context", type=whole_numbers, default=[4096, 32768, 131072])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--kernels", default=load_settings().serve.load.device.kernels, help="kernel pack"
    )
    parser.add_argument("--folder", type=Path, help="for models that are made here; removed")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(options.file[0], options)
        return
    results = []
    print(f"{'model':>24} {'context':>8} {'estimate':>9} {'measured':>9} {'ratio':>6}  GB")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in filter(None, options.like.split(",")):
            path = Path(folder, f"{name}-{options.quant}.zse")
            longest = max(options.context)
            make_model(path, like=name, quant=options.quant, digest=False, max_position=longest)
            results += [compare(path, context, options) for context in options.context]
            path.unlink()
        for path in options.file:
            results += [compare(path, context, options) for context in options.context]
    print(json.dumps({"subject": "memory", **machine_facts(), "results": results}))


def compare(path: Path, context: int, options: argparse.Namespace) -> dict[str, object]:
    """Load a model in a process of its own and set what it takes beside the estimate."""
    on_gpu = options.device != "cpu"
    facts = read_facts(path, load_settings())
    estimate = estimate_memory(facts, options.quant, on_gpu=on_gpu, context_tokens=context)
    expected = estimate.total_bytes
    if not on_gpu:  # pages of the cache come as tokens are written
        written = min(context, prompt_tokens(context) + OUTPUT_TOKENS)
        expected -= estimate.kv_bytes * (1 - written / estimate.context_tokens)
    before = used_bytes(options.device) if on_gpu else 0
    arguments = [f"--file={path}", f"--device={options.device}", f"--context={context}"]
    command = [sys.executable, __file__, "--hold", f"--kernels={options.kernels}", *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = child.stdout.readline()
    if not line.startswith("ready"):
        raise SystemExit(f"{path.name} could not be held at {context} tokens of context")
    measured = used_bytes(options.device) - before if on_gpu else resident_bytes(child.pid)
    child.communicate("")
    ratio = expected / measured
    print(
        f"{path.stem:>24} {context:8} {expected / 1e9:9.3f} {measured / 1e9:9.3f} {ratio:6.3f}",
        flush=True,
    )
    return {
        "model": path.stem,
        "device": options.device,
        "context_tokens": context,
        **{name: value for name, value in estimate.to_json().items() if name.endswith("bytes")},
        "expected_bytes": int(expected),
        "measured_bytes": measured,
        "ratio": round(ratio, 4),
    }


def hold(path: Path, options: argparse.Namespace) -> None:
    """Load a model, answer a prompt, say so, and wait until standard input ends."""
    context = options.context[0]
    load = load_options(
        device=options.device,
        kernels=options.kernels,
        max_context=context,
        num_blocks=-(-context // load_options().cache.block_size),
        prefill_weights="make",  # what is kept beside is taken where it is to spare: no estimate
    )
    runner = load_runner(path, load, cache_dir=load_settings().cache_dir)
    core = meter.core_over(runner, load)
    prompts = meter.random_prompts(runner.vocab_size, 1, prompt_tokens(context), seed=0)
    meter.run_batch(core, prompts, OUTPUT_TOKENS)
    print("ready", flush=True)
    sys.stdin.read()
    core.close()


def prompt_tokens(context: int) -> int:
    """Return the length of a prompt that fills a step, as far as the context has room."""
    return min(load_options().batch.max_batch_tokens, context - OUTPUT_TOKENS)


def used_bytes(device: str) -> int:
    """Return what the driver says is used of a GPU, by whichever process."""
    query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    ordinal = device.partition(":")[2] or "0"
    found = subprocess.run(
        ["nvidia-smi", "-i", ordinal, *query], capture_output=True, text=True, check=True
    )
    return int(found.stdout) << 20


def resident_bytes(process_id: int) -> int:
    """Return the most that was resident of a process, pages of its files too."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10


if __name__ == "__main__":
    main()
