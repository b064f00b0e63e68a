"""Attention of models with layers of several kinds: a part of ``attention.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.kernels.attention.variants import (
    DecodeForm,
    PrefillForm,
    decode_variant,
    prefill_variant,
)
from zse.kernels.layout import HeadShape

if TYPE_CHECKING:
    from attention import Report

    from zse.kernels.launcher import Launcher
    from zse.kernels.variant import Variant

FAMILIES: dict[str, tuple[HeadShape, dict[str, Any]]] = {
    "gemma-3-27b": (HeadShape(num_heads=32, kv_heads=16, head_dim=128), {"window": 1024}),
    "gpt-oss-20b": (
        HeadShape(num_heads=64, kv_heads=8, head_dim=64),
        {"window": 128, "sinks": True},
    ),
    "qwen3.6": (
        HeadShape(num_heads=16, kv_heads=2, head_dim=256, parts=("query", "gate", "key", "value")),
        {"rotary_dim": 64},
    ),
}
"""Heads, and what else the layers have that have most."""
WIDE_PREFILL_TUNING = ((64, 32, 4, 2), (64, 32, 8, 2), (64, 64, 8, 2), (64, 32, 8, 3))
"""Queries, tokens, warps and stages for prompts and heads of 256 columns."""
WIDE_DECODE_TUNING = ((32, 4, 2), (32, 8, 2), (64, 8, 2))
"""Tile, warps, stages for gated heads of 256 columns."""


def wide_tuning() -> dict[tuple[int, int, int, int], Variant]:
    return {
        choice: prefill_variant(
            PrefillForm(head_dim=256, queries=choice[0], tokens=choice[1]),
            num_warps=choice[2],
            num_stages=choice[3],
        )
        for choice in WIDE_PREFILL_TUNING
    }


def gated_tuning() -> dict[str, Variant]:
    form = DecodeForm(head_dim=256, family=True, quantized_output=True)
    return {
        f"tile {tile} warps {warps} stages {stages}": decode_variant(
            form, tile=tile, num_warps=warps, num_stages=stages
        )
        for tile, warps, stages in WIDE_DECODE_TUNING
    }


def families(launcher: Launcher, report: Report, *, sweep: bool) -> None:
    """Layers with windows, sinks and gates, beside those of the same models that see everything."""
    from attention_cases import DecodeCase, PrefillCase

    def decode(shape: HeadShape, rows: int, tuned=None, **options) -> dict[str, float]:
        case = DecodeCase(launcher, shape, [4096] * rows, **options)
        us = case.microseconds(tuned)
        return {"us": us, "TB/s": case.cache_bytes / us / 1e6, "splits": case.splits}

    def prefill(shape: HeadShape, tuned=None, **options) -> dict[str, float]:
        options.pop("rotary_dim", None)  # prompts' heads have turned already
        case = PrefillCase(launcher, shape, [(0, 2048)], **options)
        error = case.error(tuned)
        us = case.microseconds(tuned)
        return {"us": us, "TFLOP/s": case.flops / us / 1e6, "error": error}

    for name, (shape, options) in FAMILIES.items():
        full = {key: value for key, value in options.items() if key != "window"}
        for kind, chosen in {"": options, " full": full}.items():
            if kind and chosen == options:
                continue

            def check(shape=shape, chosen=chosen) -> dict[str, float]:
                case = DecodeCase(launcher, shape, [1, 33, 1500], layers=1, **chosen)
                return {"error": case.error()}

            report.part(f"check decode {name}{kind}", check)
            for rows in (1, 8, 32):
                report.part(
                    f"decode {name}{kind} rows {rows} context 4096",
                    lambda s=shape, r=rows, o=chosen: decode(s, r, **o),
                )
            report.part(f"prefill {name}{kind} 2048", lambda s=shape, o=chosen: prefill(s, **o))
    report.part(
        "prefill heads of 512 columns 2048",
        lambda: prefill(HeadShape(num_heads=16, kv_heads=2, head_dim=512)),
    )
    if sweep:
        shape, options = FAMILIES["qwen3.6"]
        for name, tuned in gated_tuning().items():
            report.part(
                f"decode qwen3.6 {name}",
                lambda s=shape, o=options, t=tuned: decode(s, 1, t, **o),
            )
        for choice, tuned in wide_tuning().items():
            report.part(
                f"prefill qwen3.6 queries, tokens, warps, stages {choice}",
                lambda s=shape, t=tuned: prefill(s, t),
            )
