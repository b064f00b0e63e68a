"""Attention of prompts over lines, and of decode steps: what ``prompt_kernels.py`` times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.kernels.attention import variants as attention
from zse.kernels.attention.definitions import CONTEXT_APART
from zse.kernels.layout import HeadShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prompt_kernels import Report

    from zse.kernels.variant import Variant

QWEN_7B = HeadShape(num_heads=28, kv_heads=4, head_dim=128)
CONTEXTS = [(64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (128, 64, 8, 3)]
"""Queries, tokens, warps, stages."""
APART = [(64, 3), (128, 2)]
"""Tokens and stages of attention whose warps fetch and compute apart."""


def attention_forms() -> Iterator[Variant]:
    """Every form that is timed."""
    yield from context_forms()
    yield from (attention.gather_context_variant(128, cache) for cache in ("bf16", "int8"))
    yield attention.prefill_variant(attention.PrefillForm(head_dim=128))
    yield from (form for form, *_ in decode_forms())


def context_forms() -> Iterator[Variant]:
    for queries, tokens, warps, stages in CONTEXTS:
        yield attention.context_variant(
            128, tokens, queries=queries, num_warps=warps, num_stages=stages
        )
    for tokens, stages in APART:
        yield attention.context_variant(
            128, tokens, queries=128, num_stages=stages, kernel=CONTEXT_APART
        )


def decode_forms() -> Iterator[tuple[Variant, str, int, int, int]]:
    """Forms of decode attention, the cache, tokens of a tile, stages, times of splits."""
    for cache in ("bf16", "int8"):
        for tile, stages, times in (
            (64, 2, 1), (64, 2, 2), (64, 3, 1), (64, 3, 2), (64, 4, 1), (32, 3, 1), (32, 4, 2),
            (32, 3, 2),
        ):  # fmt: skip
            form = attention.DecodeForm(head_dim=128, cache=cache, quantized_output=True)
            made = attention.decode_variant(form, tile=tile, num_stages=stages)
            yield made, cache, tile, stages, times


def decodes(launcher: Any, report: Report) -> None:
    from attention_cases import DecodeCase

    from zse.kernels.attention.launch import decode_splits

    for rows, context in ((8, 576), (128, 576), (256, 576), (1, 30000), (8, 30000)):
        for form, cache, tile, stages, times in decode_forms():
            name = (
                f"decode {cache} {rows} x {context}: tiles {tile} stages {stages} splits x{times}"
            )
            if not report.wants(name):
                continue
            splits = decode_splits(rows, 4, launcher.device) * times
            splits = min(splits, 64, -(-context // tile))
            case = DecodeCase(
                launcher, QWEN_7B, [context] * rows, cache=cache, splits=splits, qkv_splits=3
            )

            def work(case=case, form=form) -> dict[str, float]:
                us = case.microseconds(form)
                return {"us": us, "TB/s": case.cache_bytes / us / 1e6, "splits": case.splits}

            report.part(name, work)


def contexts(launcher: Any, report: Report) -> None:
    import torch
    from attention_cases import PrefillCase, relative_error
    from gpu_timing import graph_us

    from zse.kernels.attention.context import (
        Context,
        attention_over_context,
        context_bytes,
        context_entries,
        gather_context,
    )
    from zse.kernels.attention.launch import PrefillTiles

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    def seeded(first: int, count: int, queries: int) -> PrefillCase:
        torch.manual_seed(7)
        return PrefillCase(launcher, QWEN_7B, [(first, count)], queries=queries)

    held: dict[tuple[int, int], torch.Tensor] = {}
    for first, count in ((0, 2048), (0, 8192), (27952, 2048), (21808, 8192)):
        for form in context_forms():
            sizes = dict(form.constants)
            queries, tokens = int(sizes["QUERIES"]), int(sizes["TOKENS"])
            shape = f"{queries} x {tokens}, {form.num_warps} warps, {form.num_stages} stages"
            shape += " apart" * (form.kernel is CONTEXT_APART)
            name = f"context {count} after {first}: {shape}"
            if not report.wants(name):
                continue
            case = seeded(first, count, queries)
            entries = ints(context_entries(case.cache.table[0].tolist(), first + count))
            lines = ints([0] * len(case.arrays[0]))
            buffer = torch.zeros(
                context_bytes(QWEN_7B, len(entries)), dtype=torch.uint8, device="cuda"
            )
            context = Context(
                keys=buffer.data_ptr(), num_blocks=len(entries), blocks=entries.data_ptr(),
                tile_lines=lines.data_ptr(),
            )  # fmt: skip
            tiles = PrefillTiles(
                count=len(lines), first_rows=case.arrays[0].data_ptr(),
                num_rows=case.arrays[1].data_ptr(), table_rows=0,
                first_positions=case.arrays[3].data_ptr(),
            )  # fmt: skip

            def gather(case=case, context=context) -> None:
                gather_context(launcher, QWEN_7B, case.cache.layer(0), context)

            def attend(case=case, context=context, tiles=tiles, form=form) -> None:
                attention_over_context(
                    launcher, case.queries.data_ptr(), QWEN_7B, context, tiles,
                    case.found.data_ptr(), tuned=form,
                )  # fmt: skip

            def run(
                case=case, gather=gather, attend=attend, first=first, count=count
            ) -> dict[str, float]:
                gather()
                attend()
                torch.cuda.synchronize()
                found = case.found.clone()
                if (first, count) not in held:
                    paged = seeded(first, count, 64)
                    paged.call()
                    held[first, count] = paged.found
                error = relative_error(found, held[first, count])
                us = graph_us([attend], least=4, replays=5)
                return {"us": us, "TFLOP/s": case.flops / us / 1e6, "error": error}

            report.part(name, run)
        if not report.wants(f"context {count} after {first}: pages"):
            continue
        case = PrefillCase(launcher, QWEN_7B, [(first, count)])
        report.part(
            f"context {count} after {first}: pages",
            lambda case=case: {"us": case.microseconds()},
        )
        report.part(
            f"context {count} after {first}: copying",
            lambda gather=gather: {"us": graph_us([gather], least=8, replays=5)},
        )
