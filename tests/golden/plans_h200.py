"""Which kernel multiplies what on an H200: every matrix of a 7B and a 32B model, 1 to 256 tokens.

The planner's arithmetic and the measured tables decide; neither may change a choice by accident.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from zse.device.facts_of_gpus import H200
from zse.kernels.attention.launch import decode_splits
from zse.kernels.layout import Plain
from zse.kernels.linear.launch import linear_prefill
from zse.kernels.linear.plan import plan_linear
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.tuning import Tuning

if TYPE_CHECKING:
    from zse.device.gpu import Grid
    from zse.kernels.variant import Variant

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_QUANTIZED = 128
PREFILL_TOKENS = (257, 512, 1000, 2048, 8192)
WIDENED_BYTES = 128 << 20
SHAPES = {
    "7b.qkv": (4608, 3584),
    "7b.o": (3584, 3584),
    "7b.gate_up": (37888, 3584),
    "7b.down": (3584, 18944),
    "7b.head": (152064, 3584),
    "32b.qkv": (7168, 5120),
    "32b.o": (5120, 5120),
    "32b.gate_up": (55296, 5120),
    "32b.down": (5120, 27648),
    "32b.head": (152064, 5120),
}
"""Rows and columns of each matrix."""
GROUPS = {"int4": 128, "nf4": 64, "int8": 0, "bf16": 0}


class Recorder:
    """A launcher that remembers what it was asked for."""

    device = H200

    def __init__(self) -> None:
        self.launched: list[str] = []

    def launch(self, variant: Variant, grid: Grid, *arguments: float) -> None:
        self.launched.append(f"{variant.key} {grid[0]}x{grid[1]}x{grid[2]}")


def plans() -> dict[str, dict[str, str]]:
    """Return the choices: for each matrix and form, ``kernel/splits`` for each of ``TOKENS``.

    Kernels are numbered, so that the file stays small: ``kernels`` says which number is which.
    ``prefill`` says what more tokens are multiplied with: the last launch, and how many there are.
    """
    tuning = Tuning.load(H200.name)
    numbers: dict[str, str] = {}
    found: dict[str, str] = {}
    for name, scheme, table in product(SHAPES, GROUPS, ("tuned", "modelled")):
        weight = weight_of(name, scheme)
        for quantized in (False, True) if scheme != "bf16" else (False,):
            chosen = []
            for tokens in TOKENS:
                if quantized and tokens > MOST_QUANTIZED:
                    continue
                plan = plan_linear(
                    weight,
                    tokens,
                    quantized=quantized,
                    device=H200,
                    max_splits=1 if name.endswith("head") else None,
                    tuning=tuning if table == "tuned" else None,
                )
                number = numbers.setdefault(plan.variant.key, str(len(numbers)))
                chosen.append(f"{number}/{plan.splits}")
            bits = "a8" if quantized else "a16"
            found[f"{name} {scheme} {bits} {table}"] = " ".join(chosen)
    return {
        "kernels": {number: key for key, number in numbers.items()},
        "plans": found,
        "prefill": {
            f"{name} {scheme} {tokens}": _prefill(weight_of(name, scheme), tokens)
            for name, scheme, tokens in product(SHAPES, ("int4", "bf16"), PREFILL_TOKENS)
        },
        "attention_splits": {
            f"{heads} heads": " ".join(str(decode_splits(n, heads, H200, 32768)) for n in TOKENS)
            for heads in (4, 8)
        },
    }


def weight_of(name: str, scheme: str) -> LinearWeight:
    rows, columns = SHAPES[name]
    group = GROUPS[scheme]
    return LinearWeight(scheme=scheme, rows=rows, columns=columns, group_size=group, weights=0)


def _prefill(weight: LinearWeight, tokens: int) -> str:
    recorder = Recorder()
    inputs = Plain(rows=tokens, columns=weight.columns, values=0)
    linear_prefill(recorder, weight, inputs, 0, "fp32", scratch_bytes=WIDENED_BYTES)
    return f"{recorder.launched[-1]} of {len(recorder.launched)}"
