"""What `zse fit` says: how many copies of models the memory of a GPU holds."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import typer

from zse.cli.titled_tables import Table, print_tables
from zse.device.known_gpus import KNOWN_GPUS, KnownGpu
from zse.engine.recorded import recorded_facts
from zse.errors import UsageError
from zse.models.memory import MemoryEstimate, estimate_memory
from zse.models.storage import QUANTIZATIONS
from zse.records import record
from zse.units import GIB, MIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.settings import Settings


@record
class WantedModel:
    """One model of a mix."""

    name: str
    count: int | None
    """How many copies there are to be; None asks how many there can be."""
    estimate: MemoryEstimate
    """Of one copy."""


def wanted_models(
    words: Sequence[str],
    settings: Settings,
    *,
    quantization: str,
    context_tokens: int,
    kv_dtype: str,
) -> list[WantedModel]:
    """Read models and how many of each are asked for: ``MODEL`` or ``MODEL=COUNT``.

    Raises:
        UsageError: A count is none, or some models have one and others have not.
        NotFoundError: There is no such model.
    """
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise UsageError(f"there is no scheme {quantization!r}", hint=f"Schemes are {known}.")
    wanted = []
    for word in words:
        name, count = _read_count(word)
        estimate = estimate_memory(
            recorded_facts(name, settings),
            quantization,
            on_gpu=True,
            context_tokens=context_tokens,
            kv_dtype=kv_dtype,
        )
        wanted.append(WantedModel(name=name, count=count, estimate=estimate))
    if len({one.count is None for one in wanted}) > 1:
        raise UsageError(
            "some models have a count and others have not",
            hint="Give each one: zse fit A=1 B=10; or none, to be told of each alone.",
        )
    return wanted


def gpus_named(name: str, vram_gib: float) -> list[KnownGpu]:
    """Return the GPUs to plan for: one by name or size, else all that are known.

    Raises:
        UsageError: No GPU has that name, or both are given.
    """
    if name and vram_gib:
        raise UsageError("--gpu and --vram-gib exclude each other", hint="Give one of them.")
    if vram_gib:
        size_mib = round(vram_gib * GIB / MIB)
        return [KnownGpu(name=f"a GPU of {vram_gib:g} GiB", memory_mib=size_mib)]
    if not name:
        return list(KNOWN_GPUS)
    by_name = {_plain(gpu.name): gpu for gpu in KNOWN_GPUS}
    if (found := by_name.get(_plain(name))) is not None:
        return [found]
    near = get_close_matches(_plain(name), by_name, n=1)
    meant = f"Did you mean {by_name[near[0]].name!r}? " if near else ""
    names = ", ".join(gpu.name for gpu in KNOWN_GPUS)
    raise UsageError(
        f"no known GPU is called {name!r}", hint=f"{meant}Known are {names}; or give --vram-gib."
    )


def describe_fit(wanted: Sequence[WantedModel], gpus: Sequence[KnownGpu]) -> dict[str, Any]:
    """Return what fits, as JSON values; sizes are in bytes.

    Returns:
        ``models``, what one copy of each takes, and ``gpus``: of models without counts how many
        copies each GPU holds of each alone, else what the mix leaves free, negative where it does
        not fit.
    """
    models = [{"model": one.name, "count": one.count, **one.estimate.to_json()} for one in wanted]
    if any(one.count is None for one in wanted):
        fits = [
            {
                **_described(gpu),
                "copies": {
                    one.name: gpu.usable_bytes // one.estimate.total_bytes for one in wanted
                },
            }
            for gpu in gpus
        ]
        return {"models": models, "gpus": fits}
    needed = sum((one.count or 0) * one.estimate.total_bytes for one in wanted)
    fits = [{**_described(gpu), "free_bytes": gpu.usable_bytes - needed} for gpu in gpus]
    return {"models": models, "needed_bytes": needed, "gpus": fits}


def show_fit(report: dict[str, Any], *, as_json: bool) -> None:
    """Print what ``describe_fit`` returned; exit with 1 where a mix fits no GPU."""
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_tables([_models_table(report), _gpus_table(report)])
    if "needed_bytes" in report and all(gpu["free_bytes"] < 0 for gpu in report["gpus"]):
        raise typer.Exit(1)


def _models_table(report: dict[str, Any]) -> Table:
    rows = [
        (
            one["model"],
            "-" if one["count"] is None else str(one["count"]),
            one["quantization"],
            f"{one['context_tokens']:,}",
            memory_text(one["weights_bytes"]),
            memory_text(one["kv_bytes"]),
            memory_text(one["total_bytes"]),
        )
        for one in report["models"]
    ]
    columns = ("model", "copies", "scheme", "context", "weights", "kv cache", "one copy takes")
    return Table(title="models", columns=columns, rows=rows)


def _gpus_table(report: dict[str, Any]) -> Table:
    gpus = report["gpus"]
    sizes = [(gpu["gpu"], memory_text(gpu["usable_bytes"])) for gpu in gpus]
    if "needed_bytes" in report:
        needed = memory_text(report["needed_bytes"])
        cells: list[tuple[str, ...]] = [(needed, *_left(gpu["free_bytes"])) for gpu in gpus]
        columns: tuple[str, ...] = ("gpu", "usable", "together", "fits", "left")
    else:
        cells = [tuple(str(count) for count in gpu["copies"].values()) for gpu in gpus]
        columns = ("gpu", "usable", *(f"copies of {name}" for name in gpus[0]["copies"]))
    rows = [(*size, *cell) for size, cell in zip(sizes, cells, strict=True)]
    return Table(title="gpus", columns=columns, rows=rows)


def _left(free_bytes: int) -> tuple[str, str]:
    if free_bytes < 0:
        return "no", f"{memory_text(-free_bytes)} too little"
    return "yes", memory_text(free_bytes)


def _described(gpu: KnownGpu) -> dict[str, Any]:
    return {"gpu": gpu.name, "usable_bytes": gpu.usable_bytes}


def _read_count(word: str) -> tuple[str, int | None]:
    """Split ``MODEL=COUNT``; an address may have an ``=`` of its own, before what is no number."""
    name, equals, count = word.rpartition("=")
    if not equals or not count.isascii() or not count.isdigit():
        return word, None
    if not name or not 0 < int(count[:6]) <= 10_000 or len(count) > 5:
        raise UsageError(
            f"{word!r} asks for {count[:20]} copies", hint="Give MODEL=COUNT, of 1 to 10000."
        )
    return name, int(count)


def _plain(name: str) -> str:
    return "".join(name.lower().replace("-", "").split())
