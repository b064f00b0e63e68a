"""Which kernel multiplies what on an H200: every matrix of a 7B and a 32B model, 1 to 256 tokens.

The planner's arithmetic and the measured tables decide; neither may change a choice by accident.
"""

from __future__ import annotations

from itertools import product

from zse.device.facts import DeviceFacts
from zse.kernels.linear.plan import plan_linear
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.tuning import Tuning

H200 = DeviceFacts(
    name="NVIDIA H200",
    target="sm_90",
    warp_threads=32,
    multiprocessors=132,
    shared_memory_optin_bytes=227 << 10,
    l2_bytes=50 << 20,
    bandwidth_bytes_per_second=4.916736e12,
)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_QUANTIZED = 128
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


def plans() -> dict[str, dict[str, str]]:
    """Return the choices: for each matrix and form, ``kernel/splits`` for each of ``TOKENS``.

    Kernels are numbered, so that the file stays small: ``kernels`` says which number is which.
    """
    tuning = Tuning.load(H200.name)
    numbers: dict[str, str] = {}
    found: dict[str, str] = {}
    for (name, shape), scheme, table in product(SHAPES.items(), GROUPS, ("tuned", "modelled")):
        weight = LinearWeight(
            scheme=scheme, rows=shape[0], columns=shape[1], group_size=GROUPS[scheme], weights=0
        )
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
    return {"kernels": {number: key for key, number in numbers.items()}, "plans": found}
