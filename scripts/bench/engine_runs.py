"""What the engine's benchmarks share: their flags, and figures of several runs."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from zse.engine import meter
from zse.options import load_options
from zse.serve import garbage_collection
from zse.settings import load_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from zse.engine.encoder_core import AnyCore
    from zse.engine.meter import TimedRun


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--kv-dtype", default="auto", help="auto, fp32, bf16 or int8")
    parser.add_argument("--exact-activations", action="store_true", help="no 8-bit activations")
    parser.add_argument("--deterministic", action="store_true", help="each row by itself")
    parser.add_argument("--prefill-precision", default="auto", help="auto, 16 or 8 bits")
    parser.add_argument("--prefill-weights", default="auto", help="auto, keep or make")
    parser.add_argument(
        "--kernels",
        default=load_settings().serve.load.device.kernels,
        help="kernel pack, else that of ZSE_KERNELS; empty looks in the usual places",
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is all")
    parser.add_argument("--seed", type=int, default=0)


def whole_numbers(text: str) -> list[int]:
    """Read ``1,8,32``."""
    return [int(word) for word in text.split(",")]


def open_core(
    options: argparse.Namespace, *, num_tokens: int, max_sequences: int, max_batch_tokens: int
) -> AnyCore:
    """Open a model with a KV cache for ``max_sequences`` of ``num_tokens`` each.

    Cycles are looked for as seldom as by a server: a look takes 256 answers 20 ms.
    """
    names = ("device", "threads", "kv_dtype", "exact_activations", "kernels")
    names += ("prefill_precision", "prefill_weights", "deterministic")
    load = load_options(
        **{name: getattr(options, name) for name in names},
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
    )
    runner = meter.open_runner(options.model, load, load_settings(), num_tokens=num_tokens)
    garbage_collection.resume()
    return meter.core_over(runner, load)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def middle(runs: Sequence[TimedRun]) -> TimedRun:
    """Return the run with the median time."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def median_of(values: Sequence[float]) -> float:
    return statistics.median(values)
