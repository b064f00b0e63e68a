"""Sparse attention beside torch's dense one and FlexAttention: times, and scores that are kept.

    python scripts/bench/sparse.py                       # table, ends with one JSON line
    python scripts/bench/sparse.py --lengths 1024,4096 --pattern longformer --heads 32

FlexAttention is compiled by torch.compile and gets the same pairs; it and what runs out of memory
are said to be missing. The best of ``--rounds`` counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from machine import machine_facts

from zse.sparse import SparseAttentionConfig, SparsePattern, zSparseAttention

if TYPE_CHECKING:
    from collections.abc import Callable

PATTERNS: dict[str, Callable[[], SparsePattern]] = {
    "sliding_window": SparsePattern.sliding_window,
    "longformer": SparsePattern.longformer,
    "bigbird": SparsePattern.bigbird,
    "block_sparse": SparsePattern.block_sparse,
}


def milliseconds(run: Callable[[], object], device: str, rounds: int) -> float | None:
    """Return the best time of a call; None where memory does not suffice."""
    best = float("inf")
    try:
        for _ in range(rounds + 1):  # the first one compiles
            begin = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
    except torch.OutOfMemoryError:
        return None
    return best * 1e3


def flex(config: SparseAttentionConfig, length: int, device: str) -> Callable[..., torch.Tensor]:
    """Return FlexAttention over the window and global tokens of a causal pattern."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    pattern = config.pattern

    def seen(
        _batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        near = (query - key < pattern.window_size) | (key < pattern.num_global_start)
        return (query >= key) & near

    mask = create_block_mask(seen, None, None, length, length, device=device)
    compiled = torch.compile(flex_attention)
    return lambda query, key, value: compiled(
        query, key, value, block_mask=mask, scale=config.factor
    )


def measure(options: argparse.Namespace, length: int) -> dict[str, object]:
    """Return one line of the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = SparseAttentionConfig(
        num_heads=options.heads, head_dim=options.head_dim, pattern=PATTERNS[options.pattern]()
    )
    shape = (1, options.heads, length, options.head_dim)
    query, key, value = torch.randn(3, *shape, device=device, dtype=torch.bfloat16)
    sparse = zSparseAttention(config)
    dense = torch.nn.functional.scaled_dot_product_attention
    line: dict[str, object] = {
        "tokens": length,
        "sparse_ms": milliseconds(lambda: sparse(query, key, value), device, options.rounds),
        "dense_ms": milliseconds(
            lambda: dense(query, key, value, is_causal=True), device, options.rounds
        ),
        "flex_ms": None,
        **sparse.get_memory_estimate(length),
    }
    is_ruled = not config.pattern.block_stride and not config.pattern.num_random
    if device == "cuda" and is_ruled:
        run = flex(config, length, device)
        line["flex_ms"] = milliseconds(lambda: run(query, key, value), device, options.rounds)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    parser.add_argument("--pattern", choices=PATTERNS, default="sliding_window")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines = []
    for length in map(int, options.lengths.split(",")):
        lines.append(measure(options, length))
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in lines[-1].items()))  # fmt: skip
    facts = {"pattern": options.pattern, "heads": options.heads, "head_dim": options.head_dim}
    print(json.dumps({**machine_facts(), **facts, "lines": lines}))


if __name__ == "__main__":
    main()
