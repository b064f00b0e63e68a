"""Sums over the GPUs of one host: alone, fused with the norm, of prompts, and joined logits.

    scripts/bench/allreduce.py [--ranks 2] [--pack PACK] [--check] [--nccl]

Each rank is a process; each figure is of a captured graph of many, launch included, the fastest of
some, as the slowest rank saw it. Without PACK the kernels that it needs are compiled first. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

import rank_mesh
from exchange_ranks import CHECKS, HIDDEN, Rank
from machine import machine_facts

from zse.kernels.exchange.launch import (
    part_groups,
    rank_gather,
    rank_norm,
    rank_sum,
)
from zse.kernels.exchange.variants import VARIANTS
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm.launch import residual_norm
from zse.kernels.norm.variants import residual_norm_variant, row_groups_for

if TYPE_CHECKING:
    from collections.abc import Callable

Work: TypeAlias = "Callable[[], object]"
REPEATS = 8
SUM_BYTES = (4_096, 16_384, 32_768, 65_536, 262_144, 1_048_576)
ROWS = ((1, 3584), (1, 8192), (8, 8192), (64, 8192))
MANY_ROWS = ((512, 8192), (2048, 8192), (8192, 8192))
SPLITS, VOCAB, EPSILON = 4, 151_936, 1e-6


def timed_us(rank: Rank, work: Work, count: int) -> float:
    """Return the fastest graph's microseconds of one of ``count`` works, launch included."""

    def works() -> None:
        for _ in range(count):
            work()

    works()
    rank.stream.synchronize()
    graph = rank.captured(works)
    found = []
    for _ in range(REPEATS):
        rank.stream.synchronize()
        rank.mesh.barrier()
        began = time.perf_counter()
        graph.launch(rank.stream)
        rank.stream.synchronize()
        found.append((time.perf_counter() - began) / count * 1e6)
    graph.destroy()
    return min(found)


class Measured:
    """Exchanges of one rank over memory that is filled with zeros."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._launcher, self._exchange = rank, rank.launcher, rank.exchange
        length = MANY_ROWS[-1][0] * HIDDEN * 4
        lengths = (SPLITS * 64 * HIDDEN * 4 + 3 * length, length, length, length, length)
        blocks = [rank.gpu.allocate(each) for each in lengths]
        for block in blocks:
            rank.gpu.fill(block.address, 0, block.length_bytes, rank.stream)
        self._summands, self._stream, self._weight, self._out, self._scales = (
            block.address for block in blocks
        )

    def all_us(self) -> dict[str, float]:
        """Return microseconds by name."""
        found = self.sums_us()
        for rows, hidden in (*ROWS, *MANY_ROWS):
            norms = self.norms_of_many(rows, hidden) if rows > 64 else self.norms(rows, hidden)
            for name, work in norms.items():
                count = 4 if rows > 64 else 100
                found[f"{name} {rows} x {hidden}"] = timed_us(self._rank, work, count)
        return found | self.logits_us()

    def sums_us(self) -> dict[str, float]:
        found = {}
        for length in SUM_BYTES:
            sums = Partials(rows=1, columns=length // 4, splits=1, values=self._summands)
            for narrow in (False, True):
                name = f"sum {length // 1024} KB{' as bf16' if narrow else ''}"
                work = partial(rank_sum, self._launcher, self._exchange, sums, narrow=narrow)
                found[name] = timed_us(self._rank, work, 100)
        return found

    def norms(self, rows: int, hidden: int) -> dict[str, Work]:
        """Return norms of a few rows, which leave int8 codes, without ranks and over them."""
        added = Partials(rows=rows, columns=hidden, splits=SPLITS, values=self._summands)
        output = Quantized(
            rows=rows, columns=hidden, codes=self._out, scales=self._scales,
            sums=self._scales + rows * hidden,
        )  # fmt: skip
        found = self._norms(added, output, narrow=False)
        if groups := part_groups(rows, hidden, self._exchange.programs):
            found["norm in parts over ranks"] = partial(
                rank_norm, self._launcher, self._exchange, *self._given(output), added,
                groups_of_part=groups,
            )  # fmt: skip
        return found

    def norms_of_many(self, rows: int, hidden: int) -> dict[str, Work]:
        """Return norms of many rows, whose sums are sent as bfloat16."""
        size = {"rows": rows, "columns": hidden}
        added = Partials(**size, splits=1, values=self._summands)
        return self._norms(added, Plain(**size, values=self._out), narrow=True)

    def _norms(
        self, added: Partials, output: Plain | Quantized, *, narrow: bool
    ) -> dict[str, Work]:
        launcher, exchange, given = self._launcher, self._exchange, self._given(output)

        def both() -> None:
            total = rank_sum(launcher, exchange, added, narrow=narrow)
            residual_norm(launcher, *given, added=total)

        return {
            "norm": partial(residual_norm, launcher, *given, added=added),
            "norm over ranks": partial(rank_norm, launcher, exchange, *given, added, narrow=narrow),
            "sum, then norm": both,
        }

    def _given(self, output: Plain | Quantized) -> tuple[Any, ...]:
        return self._stream, output.rows, output.columns, self._weight, EPSILON, output

    def logits_us(self) -> dict[str, float]:
        rank = self._rank
        each = VOCAB // rank.ranks // 64 * 64 + 64
        own = min(each, VOCAB - rank.rank * each)
        found = {}
        for rows in (1, 16):
            work = partial(
                rank_gather, self._launcher, self._exchange, self._summands, self._stream,
                rows=rows, part_columns=each, own_columns=own, columns=VOCAB,
            )  # fmt: skip
            found[f"logits of {rows} rows"] = timed_us(rank, work, 20)
        return found


def nccl_us(rank: Rank) -> dict[str, float]:
    """Return microseconds of NCCL's sums of bfloat16, without multicast, by torch's hands."""
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571"}
    import torch
    from torch import distributed

    torch.cuda.set_device(rank.rank)
    distributed.init_process_group("nccl", rank=rank.rank, world_size=rank.ranks)
    found = {}
    for rows in (1, 64, *(rows for rows, _ in MANY_ROWS)):
        values = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
        count = 100 if rows <= 64 else 8
        distributed.all_reduce(values)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                distributed.all_reduce(values)
        times = []
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            rank.mesh.barrier()
            began = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / count * 1e6)
        found[f"NCCL as bf16 {rows} x {HIDDEN}"] = min(times)
    return found


def of_rank(pack: Path, *, check: bool, nccl: bool) -> None:
    rank = Rank(pack)
    told: dict[str, object] = {"ranks": rank.ranks, "gpu": rank.gpu.info.name}
    if check:
        for name, each in CHECKS.items():
            told |= each(rank)
            print(f"{name}: right", file=sys.stderr)
            rank.mesh.barrier()
        rank.collectives.close()
        rank.open(10)
    told["link"] = "" if rank.ranks < 2 else rank.gpu.link_to((rank.rank + 1) % rank.ranks).kind
    measured = Measured(rank).all_us()
    rank.collectives.check()
    told["us"] = measured | (nccl_us(rank) if nccl else {})
    rank.gpu.close()
    print(json.dumps(told))


def compiled(folder: str) -> Path:
    """Compile what is needed for the GPU at hand."""
    from zse.device.cuda.info import read_info
    from zse.device.cuda.library import Driver
    from zse.kernels.build.builder import build_pack
    from zse.kernels.targets import target_named

    norms = [
        residual_norm_variant(row_groups_for(hidden), quantized=quantized, gather=False)
        for hidden in (3584, 8192)
        for quantized in (True, False)
    ]
    target = target_named(read_info(Driver(), 0).target)
    built = build_pack(
        target, [*VARIANTS, *norms], source_digest="", cache_dir=Path(folder) / "cache"
    )
    path = Path(folder) / "pack.zkp"
    path.write_bytes(built.data)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--check", action="store_true", help="check results and bad days first")
    parser.add_argument("--nccl", action="store_true", help="time NCCL beside; needs torch")
    arguments = parser.parse_args()
    if rank_mesh.VARIABLE in os.environ:
        of_rank(arguments.pack, check=arguments.check, nccl=arguments.nccl)
        return
    with tempfile.TemporaryDirectory() as folder:
        pack = arguments.pack or compiled(folder)
        flags = [f"--{name}" for name in ("check", "nccl") if getattr(arguments, name)]
        command = [__file__, "--pack", str(pack), *flags]
        outputs = rank_mesh.run(command, arguments.ranks)
    told = [json.loads(output.splitlines()[-1]) for output in outputs]
    slowest = {name: max(each["us"][name] for each in told) for name in told[0]["us"]}
    for name, microseconds in slowest.items():
        print(f"{name:34} {microseconds:9.2f} us")
    facts = {**machine_facts(), **told[0], "us": {n: round(u, 2) for n, u in slowest.items()}}
    print(json.dumps({"bench": "allreduce", **facts}))


if __name__ == "__main__":
    main()
