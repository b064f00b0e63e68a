"""How fast `zse convert` is, and how much memory it takes, on a generated checkpoint.

Writes a sharded random bfloat16 checkpoint of 7B shapes, converts it in a child process, and
prints the child's peak memory beside the largest tensor, and what `cp` of the checkpoint takes,
once after each conversion. The last line is one JSON object.

    python scripts/bench/convert.py --gib 8
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from machine import machine_facts

from zse.models.families import read_checkpoint

MIB = 1 << 20
SHARD_BYTES = 1 << 30
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0, help="size of the checkpoint")
    parser.add_argument("--quant", nargs="+", default=["int4", "nf4", "int8", "bf16"])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if absent")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="zse-bench-", dir=options.folder))
    try:
        largest_bytes = write_checkpoint(folder / "model", int(options.gib * (1 << 30)))
        runs = [
            {**measure(folder, quant), "copy_seconds": copy_seconds(folder)}
            for quant in options.quant
        ]
    finally:
        shutil.rmtree(folder)
    print(
        f"{'quant':6} {'seconds':>8} {'of a CPU':>8} {'cp':>8} {'MB/s read':>10} {'peak MiB':>9} "
        f"{'file MiB':>9}"
    )
    for run in runs:
        print(
            f"{run['quant']:6} {run['seconds']:8.1f} {run['cpu_seconds']:8.1f} "
            f"{run['copy_seconds']:8.1f} "
            f"{run['source_mb_per_s']:10.0f} "
            f"{run['peak_rss_mib']:9.0f} {run['file_mib']:9.0f}"
        )
    print(json.dumps(describe(runs, largest_bytes), sort_keys=True))


def write_checkpoint(folder: Path, wanted_bytes: int) -> int:
    """Write shards of about 1 GiB; return the bytes of the largest tensor that is made of them."""
    folder.mkdir()
    layer_bytes = stored_bytes(2) - stored_bytes(1)
    num_layers = max(1, round((wanted_bytes - stored_bytes(1)) / layer_bytes) + 1)
    config = CONFIG | {"num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config))
    block = noise_block(1 << 20)
    tensors = plan_for(num_layers)
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled_bytes = 0
    for piece in (piece for tensor in tensors for piece in tensor.pieces()):
        name, shape = piece.name, piece.shape
        if filled_bytes + nbytes(shape) > SHARD_BYTES and shards[-1]:
            shards.append([])
            filled_bytes = 0
        shards[-1].append((name, shape))
        filled_bytes += nbytes(shape)
    weight_map = {}
    for index, pieces in enumerate(shards):
        file_name = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / file_name, pieces, block)
        weight_map |= {name: file_name for name, _ in pieces}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return max(nbytes(tensor.shape) for tensor in tensors)


def noise_block(num_values: int) -> bytes:
    """Return Gaussian bfloat16 values, the upper halves of float32; shards repeat them.

    No torch here: a child's peak memory starts at what its parent held when it was started.
    """
    generator = random.Random(0)
    values = array("f", (generator.gauss(0.0, 0.02) for _ in range(num_values)))
    halves = array("H", values.tobytes())
    return halves[1::2].tobytes()


def write_shard(path: Path, pieces: list[tuple[str, tuple[int, ...]]], block: bytes) -> None:
    header, offset = {}, 0
    for name, shape in pieces:
        end = offset + nbytes(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for start in range(0, offset, len(block)):
            file.write(memoryview(block)[: offset - start])


def measure(folder: Path, quant: str) -> dict[str, float | str]:
    """Convert in a child process and return what it took."""
    out = folder / "model.zse"
    command = [sys.executable, "-m", "zse", "convert", str(folder / "model")]
    command += ["-o", str(out), "--quant", quant, "--json", "--allow-no-tokenizer"]
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    report = json.loads(child.stdout.read())
    child.stdout.close()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    out.unlink()
    return {
        "quant": quant,
        "seconds": round(seconds, 2),
        "source_mb_per_s": round(report["source_bytes"] / seconds / 1e6, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_rss_mib": round(usage.ru_maxrss / 1024, 1),
        "file_mib": round(report["size_bytes"] / MIB, 1),
        "source_gib": round(report["source_bytes"] / (1 << 30), 3),
    }


def copy_seconds(folder: Path) -> float:
    """Return what a conversion would take that only read and wrote."""
    started = time.monotonic()
    subprocess.run(["cp", "-r", str(folder / "model"), str(folder / "copied")], check=True)
    seconds = time.monotonic() - started
    shutil.rmtree(folder / "copied")
    return round(seconds, 2)


def describe(runs: list[dict[str, float | str]], largest_bytes: int) -> dict[str, object]:
    largest_mib = round(largest_bytes / MIB, 1)
    return {
        "subject": "convert",
        **machine_facts(),
        "largest_tensor_mib": largest_mib,
        "runs": runs,
    }


def plan_for(num_layers: int) -> list:
    return list(read_checkpoint(CONFIG | {"num_hidden_layers": num_layers}).weights())


def stored_bytes(num_layers: int) -> int:
    return sum(nbytes(weight.shape) for weight in plan_for(num_layers))


def nbytes(shape: tuple[int, ...]) -> int:
    size = 2
    for length in shape:
        size *= length
    return size


if __name__ == "__main__":
    main()
