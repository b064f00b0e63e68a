"""One rank of real GPUs, started by ``rank_mesh.run``: checks exchanges and prints what it found.

Arguments: a kernel pack, then the names of checks. The last line is one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rank_mesh import Mesh

from zse.backends.gpu.collectives import Collectives
from zse.backends.gpu.launcher import PackLauncher
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver
from zse.errors import DeviceError
from zse.kernels.exchange.launch import rank_gather, rank_norm, rank_sum
from zse.kernels.layout import Partials, Plain
from zse.kernels.pack import KernelPack
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from zse.device.cuda.memory import DeviceBlock

HIDDEN, EPSILON = 8192, 1e-6
SUMS = [(1, 1024), (1, 3584), (4, 4096), (64, 8192), (500, 8192), (1, 16)]
REPLAYS, REPLAYS_IN_TURNS = 10_000, 500
"""On one GPU each waits for the other's slice of time, milliseconds, where two need microseconds."""


class Rank:
    """A GPU, its stream and kernels, and its exchange with the others."""

    def __init__(self, pack: Path, *, patience_seconds: float = 10) -> None:
        self.mesh = Mesh.of_environment()
        share = self.mesh.share
        self.rank, self.ranks = share.rank, share.ranks
        driver = Driver()
        num_gpus = count_devices(driver)
        self.replays = REPLAYS if num_gpus >= self.ranks else REPLAYS_IN_TURNS
        self.gpu = Gpu.open(self.rank % num_gpus, driver=driver)
        self.stream = self.gpu.create_stream()
        self.launcher = PackLauncher(self.gpu, KernelPack.open(pack), self.stream)
        self.open(patience_seconds)

    def open(self, patience_seconds: float) -> None:
        self.collectives = Collectives(
            self.gpu, self.stream, self.mesh, hidden=HIDDEN, patience_seconds=patience_seconds
        )
        self.exchange = self.collectives.exchange

    def send(self, values: NDArray[Any]) -> DeviceBlock:
        raw = np.ascontiguousarray(values).tobytes()
        host, block = self.gpu.allocate_host(len(raw)), self.gpu.allocate(len(raw))
        host.view[: len(raw)] = raw
        self.gpu.copy_to_device(block.address, host.address, len(raw), self.stream)
        self.stream.synchronize()
        host.free()
        return block

    def read(self, block: DeviceBlock, shape: tuple[int, ...]) -> NDArray[np.float32]:
        length = int(np.prod(shape)) * 4
        host = self.gpu.allocate_host(length)
        self.gpu.copy_to_host(host.address, block.address, length, self.stream)
        self.stream.synchronize()
        values = np.frombuffer(bytes(host.view[:length]), np.float32).reshape(shape)
        host.free()
        return values

    def parts(self, shape: tuple[int, ...], seed: int = 0) -> list[NDArray[np.float32]]:
        """Return what each rank has, the same on all of them."""
        return [
            np.random.default_rng(seed * 100 + rank).standard_normal(shape, np.float32)
            for rank in range(self.ranks)
        ]

    def captured(self, work: Callable[[], object]) -> Any:
        with self.gpu.capture(self.stream) as capture:
            work()
        graph = capture.graph.instantiate()
        graph.upload(self.stream)
        return graph


def partials(block: DeviceBlock, shape: tuple[int, int, int]) -> Partials:
    splits, rows, columns = shape
    return Partials(rows=rows, columns=columns, splits=splits, values=block.address)


def bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to bfloat16, halves to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def total_of(
    parts: list[NDArray[np.float32]], *, narrow: bool, in_two: bool
) -> NDArray[np.float32]:
    """Return the sum as kernels make it: each rank's splits in order, then ranks in order."""
    total = np.zeros(parts[0].shape[1:], np.float32)
    for part in parts:
        own = np.zeros_like(total)
        for split in part:
            own = own + split
        total = total + (bf16(own) if narrow else own)
    return bf16(total) if in_two else total


def sums(rank: Rank) -> dict[str, object]:
    """Every sum has the very bits of its definition, however long and however sent."""
    for seed, (rows, columns) in enumerate(SUMS):
        for narrow in (False, True):
            parts = rank.parts((2, rows, columns), seed)
            block = rank.send(parts[rank.rank])
            rank_sum(rank.launcher, rank.exchange, partials(block, parts[0].shape), narrow=narrow)
            found = rank.read(block, (rows, columns))
            in_two = narrow and rank.ranks > 2
            expected = total_of(parts, narrow=narrow, in_two=in_two)
            wrong = int((found.view(np.uint32) != expected.view(np.uint32)).sum())
            assert not wrong, f"{wrong} of {rows} x {columns}, narrow={narrow}, differ"
            block.free()
    return {"sums": 2 * len(SUMS)}


def gathers(rank: Rank) -> dict[str, object]:
    for rows, columns in ((1, 151_936), (3, 50_257)):
        each = align_up(-(-columns // rank.ranks), 64)
        whole = np.random.default_rng(7).standard_normal((rows, columns), np.float32)
        own = whole[:, rank.rank * each : (rank.rank + 1) * each]
        part, output = rank.send(own), rank.gpu.allocate(rows * columns * 4)
        rank_gather(
            rank.launcher, rank.exchange, part.address, output.address, rows=rows,
            part_columns=each, own_columns=own.shape[1], columns=columns,
        )  # fmt: skip
        assert np.array_equal(rank.read(output, (rows, columns)), whole)
    return {"gathers": 2}


def norm_work(
    rank: Rank, rows: int, *, narrow: bool, groups: int = 0
) -> tuple[Callable[[], None], Any]:
    """Return what copies a stream and a part of a sum into place and norms them, and its parts."""
    rng = np.random.default_rng(5)
    stream = rng.standard_normal((rows, HIDDEN), np.float32)
    weight = rng.standard_normal(HIDDEN, np.float32)
    parts = rank.parts((3, rows, HIDDEN), 9)
    blocks = [rank.send(stream), rank.send(stream), rank.send(weight)]
    added, output = rank.send(parts[rank.rank]), rank.gpu.allocate(rows * HIDDEN * 2)
    sum_source, sum_target = rank.send(parts[rank.rank]), rank.send(parts[rank.rank])

    def work() -> None:
        rank.gpu.copy_on_device(blocks[1].address, blocks[0].address, stream.nbytes, rank.stream)
        rank_norm(
            rank.launcher, rank.exchange, blocks[1].address, rows, HIDDEN, blocks[2].address,
            EPSILON, Plain(rows=rows, columns=HIDDEN, values=output.address),
            partials(added, (3, rows, HIDDEN)), narrow=narrow, groups_of_part=groups,
        )  # fmt: skip
        length = parts[0].nbytes
        rank.gpu.copy_on_device(sum_target.address, sum_source.address, length, rank.stream)
        rank_sum(rank.launcher, rank.exchange, partials(sum_target, (3, rows, HIDDEN)))

    total = total_of(parts, narrow=narrow, in_two=False)
    exact = total_of(parts, narrow=False, in_two=False)
    return work, (blocks[1], stream + total, sum_target, exact)


def norms(rank: Rank) -> dict[str, object]:
    """The stream after the norm over ranks has the bits of its definition."""
    cases = [(1, False), (3, False), (64, False), (300, False), (300, True)]
    every = [(*case, 0) for case in cases] + [(1, False, 1), (8, False, 4), (20, False, 8)]
    for rows, narrow, groups in every:
        work, (block, expected, other, exact) = norm_work(rank, rows, narrow=narrow, groups=groups)
        for captured in (False, True):
            if captured:
                graph = rank.captured(work)
                graph.launch(rank.stream)
            else:
                work()
            assert np.array_equal(rank.read(block, expected.shape), expected), (rows, narrow)
            assert np.array_equal(rank.read(other, exact.shape), exact), (rows, narrow)
    return {"norms": len(every)}


def replays(rank: Rank) -> dict[str, object]:
    """A captured graph of exchanges gives the same bits however often, out of step or not."""
    work, (block, expected, other, exact) = norm_work(rank, 2, narrow=False)
    in_parts, (part_block, part_expected, _, _) = norm_work(rank, 1, narrow=False, groups=1)

    def both() -> None:
        work()
        in_parts()

    both()
    graph = rank.captured(both)
    chance = random.Random(rank.rank)
    began = time.monotonic()
    for replay in range(rank.replays):
        graph.launch(rank.stream)
        if chance.random() < 0.01:
            rank.stream.synchronize()
            time.sleep(chance.random() * 1e-3)
        if replay % 500 == 499:
            assert np.array_equal(rank.read(block, expected.shape), expected), replay
            assert np.array_equal(rank.read(part_block, part_expected.shape), part_expected)
            assert np.array_equal(rank.read(other, exact.shape), exact), replay
    rank.collectives.check()
    taken = time.monotonic() - began
    return {"replays": rank.replays, "replay_us": taken / rank.replays * 1e6}


def gone(rank: Rank, *, told: bool) -> dict[str, object]:
    """Rank 0 ends its wait for a rank that sends nothing, by the clock or when the host says so."""
    rank.collectives.close()
    rank.open(1e4 if told else 1.0)
    block = rank.send(np.ones((1, 1, 64), np.float32))
    rank.mesh.barrier()
    took = 0.0
    if rank.rank == 0:
        began = time.monotonic()
        for _ in range(100):
            rank_sum(rank.launcher, rank.exchange, partials(block, (1, 1, 64)))
        rank.stream.synchronize()
        took = time.monotonic() - began
        try:
            rank.collectives.check()
        except DeviceError as error:
            assert "waited" in str(error)  # noqa: PT017 - no pytest in here
        else:
            raise AssertionError("it did not say that it gave up")
        assert (0 if told else 0.9) < took < (1.0 if told else 2.0), took
    elif told:
        time.sleep(0.3)
        rank.mesh.broken.value = 1
    rank.mesh.barrier()
    rank.mesh.broken.value = 0
    return {"told_seconds" if told else "late_seconds": took}


CHECKS: dict[str, Callable[[Rank], dict[str, object]]] = {
    "sums": sums,
    "gathers": gathers,
    "norms": norms,
    "replays": replays,
    "late": partial(gone, told=False),
    "broken": partial(gone, told=True),
}


def main() -> None:
    rank = Rank(Path(sys.argv[1]))
    found: dict[str, object] = {"rank": rank.rank, "gpu": rank.gpu.info.name}
    for name in sys.argv[2:] or CHECKS:
        found |= CHECKS[name](rank)
        rank.mesh.barrier()
    rank.gpu.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
