"""Kernels of a model's shape on this processor: products beside reading memory, and the others.

    python scripts/bench/cpu_kernels.py                      # table, ends with one JSON line
    python scripts/bench/cpu_kernels.py --model tinyllama-1.1b --schemes int4,nf4 --rows 1,8
    python scripts/bench/cpu_kernels.py --beside OTHER.so    # another build, timed in turn
    python scripts/bench/cpu_kernels.py --schemes '' --others attention --keys 4096

A step is the products of all layers and the head, of random weights, with int8 activations where
a scheme has them. Reading is torch's sum over the same bytes. The others are attention over the
keys and values of all layers, and choosing a token from logits. The best of ``--rounds`` counts, as
other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # torch's threads would spin where ours are to run
import torch
from cpu_operations import MOST_SINGLE_ROWS, Attending, Choosing
from machine import machine_facts

from zse.kernels.native.codes import Kind, Register, Scheme
from zse.kernels.native.library import Library, load
from zse.kernels.native.structs import Matrix, Operation, Quantized, Step
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.kernels.native.library import Pool

LAYERS = 12
MODELS = {
    "qwen2.5-0.5b": ([(1152, 896), (896, 896), (9728, 896), (896, 4864)], (151936, 896)),
    "tinyllama-1.1b": ([(2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)], (32000, 2048)),
}
"""Rows and columns of a layer's matrices, and of the head's."""
HEADS = {"qwen2.5-0.5b": (14, 2, 64), "tinyllama-1.1b": (32, 4, 64)}
OTHERS = ("attention", "greedy", "nucleus")
GROUPS = {"int4": 128, "nf4": 128, "nl4": 32, "nl4_pairs": 32, "mxfp4": 32, "int8": 128}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""On a machine that others use, the processor's time tells more, with one thread."""
BITS = {
    "int4": 4,
    "nf4": 4,
    "nl4": 4,
    "nl4_pairs": 4,
    "mxfp4": 4,
    "int8": 8,
    "bf16": 16,
    "fp16": 16,
    "fp32": 32,
}


@record
class Weights:
    """Matrices that follow each other in one piece of memory."""

    scheme: str
    shapes: list[tuple[int, int]]
    data: torch.Tensor
    scales: torch.Tensor

    def matrices(self) -> Iterable[Matrix]:
        """Return the matrices; all have the same scales, which are few."""
        place = 0
        for rows, columns in self.shapes:
            yield Matrix(
                data=self.data.data_ptr() + place,
                scales=self.scales.data_ptr(),
                rows=rows,
                columns=columns,
                scheme=Scheme[self.scheme.upper()],
                group=GROUPS[self.scheme] if BITS[self.scheme] == 4 else 0,
            )
            place += rows * columns * BITS[self.scheme] // 8


def make_weights(scheme: str, shapes: list[tuple[int, int]]) -> Weights:
    """Return random weights; bytes of plain numbers are such that none is huge."""
    size = sum(rows * columns for rows, columns in shapes) * BITS[scheme] // 8
    largest = 256 if scheme in GROUPS else 0x40
    data = torch.randint(0, largest, (size,), dtype=torch.uint8)
    scales = torch.full((max(rows * columns for rows, columns in shapes) // 32,), 0.01)
    if scheme != "int8":
        scales = scales.half()
    return Weights(scheme=scheme, shapes=shapes, data=data, scales=scales)


class Products:
    """One step: every matrix times the same rows."""

    def __init__(self, weights: Weights, rows: int) -> None:
        columns = max(columns for _, columns in weights.shapes)
        widest = max(rows for rows, _ in weights.shapes)
        stride = -(-columns // 128) * 128
        self._inputs = torch.randn(rows, columns)
        self._codes = torch.randint(-127, 128, (rows, stride), dtype=torch.int8)
        self._scales = torch.full((2, rows, stride // 32), 0.01)
        self._output = torch.empty(rows, widest)
        self._step = Step(rows=rows, num_wanted=rows, single_rows=rows)
        self._step.registers[Register.NORMED] = self._inputs.data_ptr()
        self._step.registers[Register.LOGITS] = self._output.data_ptr()
        self._step.quantized = Quantized(
            codes=self._codes.data_ptr(),
            scales=self._scales[0].data_ptr(),
            sums=self._scales[1].data_ptr(),
            stride=stride,
        )
        self._matrices = list(weights.matrices())
        self._operations = (Operation * len(self._matrices))(
            *(self._operation(matrix, weights.scheme) for matrix in self._matrices)
        )

    def _operation(self, matrix: Matrix, scheme: str) -> Operation:
        operation = Operation(
            kind=Kind.MULTIPLY,
            input=Register.NORMED,
            output=Register.LOGITS,
            quantizes=GROUPS.get(scheme, 0),
        )
        operation.matrix = ctypes.pointer(matrix)
        return operation

    def run(self, pool: Pool) -> None:
        pool.library.run(pool.handle, self._operations, len(self._operations), self._step)


def best_seconds(
    calls: list[Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> list[float]:
    """Return the shortest time of each, taken in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds + 1):  # the first warms up
        for i, call in enumerate(calls):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    return best


def measure(
    weights: Weights, rows: int, pools: list[Pool], rounds: int, clock: Callable[[], float]
) -> dict[str, object]:
    """Return the facts of one line, of the first library and of one beside it."""
    products = Products(weights, rows)
    whole = weights.data[: weights.data.numel() // 8 * 8].view(torch.int64)
    calls: list[Callable[[], object]] = [whole.sum]
    calls += [lambda pool=pool: products.run(pool) for pool in pools]
    read, *times = best_seconds(calls, rounds, clock)
    elements = sum(rows * columns for rows, columns in weights.shapes)
    line: dict[str, object] = {
        "scheme": weights.scheme,
        "rows": rows,
        "step_ms": round(times[0] * 1e3, 2),
        "tokens_per_s": round(rows / times[0], 1),
        "gbytes_per_s": round(weights.data.numel() / times[0] / 1e9, 2),
        "of_reading": round(read / times[0], 3),
        "gmacs_per_s": round(elements * rows / times[0] / 1e9, 1),
    }
    if times[1:]:
        line["beside"] = round(times[1] / times[0], 3)
    return line


def measure_other(
    name: str, options: argparse.Namespace, rows: int, pools: list[Pool]
) -> dict[str, object]:
    """Return the facts of a line of attention or of choosing tokens."""
    vocabulary = MODELS[options.model][1][0]
    step: Attending | Choosing
    if name == "attention":
        step = Attending(HEADS[options.model], rows, keys=options.keys, layers=options.layers)
    else:
        step = Choosing(vocabulary, rows, is_greedy=name == "greedy")
    calls: list[Callable[[], object]] = [lambda pool=pool: step.run(pool) for pool in pools]
    times = best_seconds(calls, options.rounds, CLOCKS[options.clock])
    line: dict[str, object] = {
        "operation": name,
        "rows": rows,
        **({"keys": options.keys} if name == "attention" else {"vocabulary": vocabulary}),
        "step_ms": round(times[0] * 1e3, 3),
        "gbytes_per_s": round(step.bytes_read / times[0] / 1e9, 2),
    }
    if times[1:]:
        line["beside"] = round(times[1] / times[0], 3)
    return line


def print_line(line: dict[str, object]) -> None:
    print("  ".join(f"{name} {value:>8}" for name, value in line.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="qwen2.5-0.5b")
    parser.add_argument("--schemes", default="int4,nf4,int8,bf16,fp16")
    parser.add_argument("--rows", default="1,2,4,8,512")
    parser.add_argument("--others", default=",".join(OTHERS))
    parser.add_argument("--keys", type=int, default=1024, help="tokens before a row's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--instructions", default="auto")
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    libraries = [load(options.instructions)]
    libraries += [Library(options.beside)] if options.beside else []
    pools = [one.start_pool(options.threads, spin_nanoseconds=20_000) for one in libraries]
    layer, head = MODELS[options.model]
    lines = []
    all_rows = [int(rows) for rows in options.rows.split(",")]
    for name in filter(None, options.others.split(",")):
        for rows in all_rows:
            if name == "attention" or rows <= MOST_SINGLE_ROWS:  # a prompt has one token chosen
                lines.append(measure_other(name, options, rows, pools))
                print_line(lines[-1])
    for scheme in filter(None, options.schemes.split(",")):
        weights = make_weights(scheme, [*layer * options.layers, head])
        for rows in all_rows:
            rounds = options.rounds if rows < 64 else max(2, options.rounds // 2)
            lines.append(measure(weights, rows, pools, rounds, CLOCKS[options.clock]))
            print_line(lines[-1])
    facts = {"model": options.model, "layers": options.layers, "threads": options.threads}
    library = {"instructions": libraries[0].instructions}
    print(json.dumps({**machine_facts(), **facts, **library, "lines": lines}))


if __name__ == "__main__":
    main()
