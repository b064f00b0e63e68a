"""Write a Hugging Face checkpoint with the shapes of a model and random bfloat16 weights.

python scripts/bench/peers/make_hf.py --like qwen2.5-7b -o q7b
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
import sys
import time
from array import array
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3])]

from model_shapes import CONFIGS  # noqa: E402

from zse.models.families import read_checkpoint  # noqa: E402

SHARD_BYTES = 4 << 30
PIECE_BYTES = 64 << 20


def checkpoint_bytes(settings: dict) -> int:
    """Return how large the weights will be."""
    return sum(2 * math.prod(shape) for _, shape, _ in _tensors(settings))


def make_hf(folder: Path, settings: dict) -> None:
    """Write config.json, shards and their index; config.json comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = _noise()
    shards: list[list[tuple[str, tuple[int, ...], str]]] = [[]]
    filled_bytes = 0
    for item in _tensors(settings):
        size_bytes = 2 * math.prod(item[1])
        if shards[-1] and filled_bytes + size_bytes > SHARD_BYTES:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(item)
        filled_bytes += size_bytes
    weight_map = {}
    for index, items in enumerate(shards):
        name = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / name, items, noise)
        weight_map |= {tensor: name for tensor, _, _ in items}
    document = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    (folder / "config.json").write_text(json.dumps(settings))


def _tensors(settings: dict) -> list[tuple[str, tuple[int, ...], str]]:
    return [
        (piece.name, piece.shape, weight.kind)
        for weight in read_checkpoint(settings).weights()
        for piece in weight.pieces()
    ]


def _noise() -> bytes:
    """Return Gaussian bfloat16 values: the upper halves of float32."""
    generator = random.Random(0)
    values = array("f", (generator.gauss(0.0, 0.02) for _ in range(1 << 20)))
    once = array("H", values.tobytes())[1::2].tobytes()
    return once * (PIECE_BYTES // len(once))


def _write_shard(path: Path, items: list[tuple[str, tuple[int, ...], str]], noise: bytes) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, _ in items:
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for _, shape, kind in items:
            left = 2 * math.prod(shape)
            # Norm weights of about one: bfloat16 1.0 is 0x3f80.
            source = b"\x80\x3f" * (left // 2) if kind == "norm" else noise
            while left:
                left -= file.write(memoryview(source)[:left])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", choices=CONFIGS, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    make_hf(options.out, CONFIGS[options.like])
    print(f"{options.out}: written in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
