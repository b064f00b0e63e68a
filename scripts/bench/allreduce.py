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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

import rank_mesh
from exchange_ranks import CHECKS, HIDDEN, Rank
from machine import machine_facts

from zse.kernels.exchange.launch import (
    part_groups,
    rank_gather,
    rank_norm,
    rank_norm_turned,
    rank_sum,
)
from zse.kernels.exchange.variants import VARIANTS
from zse.kernels.layout import Partials, Plain, Quantized, Turned
from zse.kernels.norm.launch import residual_norm
from zse.kernels.norm.variants import residual_norm_variant, row_groups_for

REPEATS = 8
SUM_BYTES = (4_096, 16_384, 32_768, 65_536, 262_144, 1_048_576)
ROWS = ((1, 3584), (1, 8192), (8, 8192), (64, 8192))
MANY_ROWS = ((512, 8192), (2048, 8192), (8192, 8192))
SPLITS, VOCAB = 4, 151_936


def timed_us(rank: Rank, work: object, count: int) -> float:
    """Return the fastest graph's microseconds of one of ``count`` works, launch included."""

    def works() -> None:
        for _ in range(count):
            work()  # type: ignore[operator]

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


def measure(rank: Rank) -> dict[str, float]:
    """Return microseconds by name."""
    gpu, launcher, exchange = rank.gpu, rank.launcher, rank.exchange
    block = gpu.allocate(SPLITS * 64 * HIDDEN * 4 + 3 * MANY_ROWS[-1][0] * HIDDEN * 4)
    gpu.fill(block.address, 0, block.length_bytes, rank.stream)
    found: dict[str, float] = {}
    for length in SUM_BYTES:
        sums = Partials(rows=1, columns=length // 4, splits=1, values=block.address)
        for narrow in (False, True):
            name = f"sum {length // 1024} KB{' as bf16' if narrow else ''}"
            found[name] = timed_us(
                rank,
                lambda sums=sums, narrow=narrow: rank_sum(launcher, exchange, sums, narrow=narrow),
                100,
            )
    length = MANY_ROWS[-1][0] * HIDDEN * 4
    stream, weight, out, scales = (gpu.allocate(length) for _ in range(4))
    for each in (stream, weight, out, scales):
        gpu.fill(each.address, 0, each.length_bytes, rank.stream)
    for rows, hidden in (*ROWS, *MANY_ROWS):
        many = rows > 64
        added = Partials(
            rows=rows, columns=hidden, splits=1 if many else SPLITS, values=block.address
        )
        codes = Quantized(
            rows=rows, columns=hidden, codes=out.address, scales=out.address + rows * hidden,
            sums=out.address + rows * hidden * 2,
        )  # fmt: skip
        output = Plain(rows=rows, columns=hidden, values=out.address) if many else codes
        given = (stream.address, rows, hidden, weight.address, 1e-6, output)
        count, name = (4 if many else 100), f"{rows} x {hidden}"

        def alone(given: tuple[object, ...] = given, added: Partials = added) -> None:
            residual_norm(launcher, *given, added=added)  # type: ignore[arg-type]

        def fused(
            given: tuple[object, ...] = given, added: Partials = added, many: bool = many
        ) -> None:
            rank_norm(launcher, exchange, *given, added, narrow=many)  # type: ignore[arg-type]

        def both(
            given: tuple[object, ...] = given, added: Partials = added, many: bool = many
        ) -> None:
            total = rank_sum(launcher, exchange, added, narrow=many)
            residual_norm(launcher, *given, added=total)  # type: ignore[arg-type]

        groups = part_groups(rows, hidden, exchange.programs)

        def in_parts(
            given: tuple[object, ...] = given, added: Partials = added, groups: int = groups
        ) -> None:
            rank_norm(launcher, exchange, *given, added, groups_of_part=groups)  # type: ignore[arg-type]

        turned = Turned(rows=rows, columns=hidden, codes=out.address, scales=scales.address)

        def on_its_way(added: Partials = added, turned: Turned = turned) -> None:
            rank_norm_turned(
                launcher, exchange, stream.address, weight.address, 1e-6, turned, added
            )

        found[f"norm {name}"] = timed_us(rank, alone, count)
        if groups:
            found[f"norm in parts over ranks {name}"] = timed_us(rank, in_parts, count)
        if many:
            found[f"turned norm over ranks {name}"] = timed_us(rank, on_its_way, count)
        found[f"norm over ranks {name}"] = timed_us(rank, fused, count)
        found[f"sum, then norm {name}"] = timed_us(rank, both, count)
    each = VOCAB // rank.ranks // 64 * 64 + 64
    own = min(each, VOCAB - rank.rank * each)
    for rows in (1, 16):
        found[f"logits of {rows} rows"] = timed_us(
            rank,
            lambda rows=rows: rank_gather(
                launcher, exchange, block.address, stream.address, rows=rows, part_columns=each,
                own_columns=own, columns=VOCAB,
            ),
            20,
        )  # fmt: skip
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
    measured = measure(rank)
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
