"""What sequences keep of their keys and values where layers have a window, and what a pool holds.

    python scripts/bench/kv_windows.py --like gpt-oss-20b,gemma-3-27b --tokens 8192 --gib 40

By the shapes alone, as a GPU lays them out in 16 bits: a table, and one JSON object as the last
line. ``kept`` is one sequence between two steps, ``whole`` the same if every layer kept all of it;
``tokens`` are those of whole sequences in a pool of so much memory, with and without windows of
their own.
"""

from __future__ import annotations

import argparse
import json

from model_shapes import CONFIGS

from zse.backends.gpu.kv_pool import BLOCK_SIZE, layout_for
from zse.backends.kv_groups import KVGroups, groups_of
from zse.kv.windows import WindowGroup, WindowPool
from zse.models.families import read_checkpoint
from zse.options import load_options
from zse.units import GIB, MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", default="gpt-oss-20b,gemma-3-27b", help="shapes, by commas")
    parser.add_argument("--tokens", type=int, default=8192, help="length of the sequence")
    parser.add_argument("--gib", type=float, default=40, help="memory of the pool")
    parser.add_argument("--max-running", type=int, default=64, help="sequences that run at once")
    options = parser.parse_args()
    found = [measure(name, options) for name in options.like.split(",")]
    print(f"{'shape':16} {'kept MiB':>9} {'whole MiB':>9} {'tokens':>9} {'before':>9}")
    for one in found:
        print(
            "{shape:16} {kept_mib:9} {whole_mib:9} {pool_tokens:9} {whole_tokens:9}".format(**one)
        )
    print(json.dumps({"tokens": options.tokens, "pool_gib": options.gib, "shapes": found}))


def measure(name: str, asked: argparse.Namespace) -> dict[str, object]:
    spec = read_checkpoint(CONFIGS[name])
    options = load_options(max_sequences=asked.max_running)
    groups = groups_of(spec, options)
    whole = KVGroups(of_layer=dict.fromkeys(groups.of_layer, 0))
    bytes_of = [layout_for(spec, "bf16", each).block_bytes() for each in (groups, whole)]
    num_blocks = -(-asked.tokens // BLOCK_SIZE)
    held = [num_blocks, *(held_blocks(window, asked.tokens) for window in groups.windows)]
    kept = sum(count * size for count, size in zip(held, bytes_of[0], strict=True))
    memory_bytes = int(asked.gib * GIB)
    tokens = [
        each.within(memory_bytes, sizes).fitting(memory_bytes, sizes, useful=0) * BLOCK_SIZE
        for each, sizes in zip((groups, whole), bytes_of, strict=True)
    ]
    return {
        "shape": name,
        "windows": groups.windows,
        "kept_mib": round(kept / MIB),
        "whole_mib": round(num_blocks * bytes_of[1][0] / MIB),
        "pool_tokens": tokens[0],
        "whole_tokens": tokens[1],
    }


def held_blocks(window: int, num_tokens: int) -> int:
    """Return the blocks that a sequence has of a window after so many tokens, computed in steps."""
    group = WindowGroup(window=window, num_blocks=-(-num_tokens // BLOCK_SIZE))
    pool = WindowPool(group, block_size=BLOCK_SIZE)
    table = pool.open_table([], None, most_tokens=num_tokens)
    for end in range(2048, num_tokens + 1, 2048):
        pool.grow(table, end)
        pool.advance(table, end)
    return len(table.blocks)


if __name__ == "__main__":
    main()
