"""The text of `zse hardware`: the machine, which models fit, what its GPU lacks to serve."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.errors import NotFoundError, ZSEError
from zse.kernels.catalog import all_variants
from zse.kernels.errors import KernelPackError, KernelPackNotFound
from zse.kernels.find import find_pack
from zse.kernels.native.library import load
from zse.kernels.targets import targets_for
from zse.models.families import read_checkpoint
from zse.models.memory import DEFAULT_CONTEXT, MemoryEstimate, ModelFacts, estimate_memory
from zse.models.rank_memory import fewest_ranks
from zse.models.well_known import WELL_KNOWN
from zse.units import memory_text

if TYPE_CHECKING:
    from zse.device.facts import GpuInfo
    from zse.device.survey import CudaSurvey, GpuState
    from zse.models.spec import ModelSpec
    from zse.settings import Settings

SCHEMES = ("int4", "nf4", "int8", "bf16")
"""The smallest first."""
_SHOWN_KEYS = 5
_LINKS = {"nvlink": "NVLink", "pcie": "PCIe", "none": "none, so one model cannot be on both"}


def build_report(settings: Settings, *, kernels: str) -> dict[str, Any]:
    """Look at the machine; return JSON values. Sizes are in bytes.

    Of kernels, an empty name means those that serving would use.
    """
    machine = probe()
    cuda = survey_cuda()
    explicit = kernels or settings.serve.load.device.kernels
    return {
        "cpu": {
            "model": machine.cpu_model,
            "physical_cores": machine.physical_cores,
            "threads": machine.compute_threads,
            **_describe_library(settings),
        },
        "memory": {
            "total_bytes": machine.total_memory_bytes,
            "available_bytes": machine.available_memory_bytes,
        },
        "cuda": {"driver_version": cuda.driver_version, "problem": _as_json(cuda.problem)},
        "gpus": [_describe_gpu(gpu, settings, explicit, _linked(gpu, cuda)) for gpu in cuda.gpus],
        "links": [asdict(link) for link in cuda.links],
        "cpu_models": _models(machine.available_memory_bytes, on_gpu=False),
    }


def _linked(gpu: GpuState, cuda: CudaSurvey) -> int:
    """Return how many GPUs that can be used reach each other and this one, itself included."""
    usable = {one.info.ordinal for one in cuda.gpus if one.problem is None}
    ordinal = gpu.info.ordinal
    others = {link.other for link in cuda.links if link.ordinal == ordinal and link.kind != "none"}
    return max(1, len(usable & (others | {ordinal})))


def _describe_gpu(
    gpu: GpuState, settings: Settings, explicit: str, num_linked: int
) -> dict[str, Any]:
    info = gpu.info
    facts = asdict(info)
    target = facts.pop("target")
    number = target.removeprefix("sm_")
    return {
        **facts,
        "capability": f"{number[:-1]}.{number[-1]}",
        "architecture": target,
        "driver_version": f"{info.driver_version // 1000}.{info.driver_version % 1000 // 10}",
        "problem": _as_json(gpu.problem),
        "kernels": _describe_pack(info, settings, explicit),
        "models": [] if gpu.problem else _models(info.free_bytes, on_gpu=True, num_gpus=num_linked),
    }


def _describe_library(settings: Settings) -> dict[str, Any]:
    """Say which instructions serving on this processor would use, or why it cannot."""
    try:
        library = load(settings.serve.load.device.cpu_instructions)
    except ZSEError as error:
        return {"instructions": "", "problem": _as_json(error)}
    return {"instructions": library.instructions, "problem": None}


def _models(free_bytes: int, *, on_gpu: bool, num_gpus: int = 1) -> list[dict[str, Any]]:
    """Return what every well-known model takes at every scheme, and whether a memory has it.

    With several GPUs also how many of them it needs, each of so much memory.
    """
    shown = ("quantization", "context_tokens", "weights_bytes", "kv_bytes", "total_bytes")
    return [
        {"model": model}
        | {name: getattr(estimate, name) for name in shown}
        | {"fits": estimate.total_bytes <= free_bytes}
        | {"gpus": _gpus_needed(model, estimate, free_bytes, num_gpus) if on_gpu else 0}
        for (model, _), estimate in well_known_estimates(on_gpu=on_gpu).items()
    ]


def _gpus_needed(model: str, estimate: MemoryEstimate, free_bytes: int, most: int) -> int:
    """Return how many GPUs of so much memory a model needs; 0 where there are too few."""
    if estimate.total_bytes <= free_bytes:
        return 1
    return _ranks_needed(model, estimate.quantization, free_bytes, most)


@cache
def _ranks_needed(model: str, scheme: str, free_bytes: int, most: int) -> int:
    needed = fewest_ranks(
        ModelFacts(spec=_well_known_spec(model)),
        scheme,
        free_bytes,
        on_gpu=True,
        context_tokens=DEFAULT_CONTEXT,
        most=range(2, most + 1),
    )
    return needed or 0


@cache
def well_known_estimates(*, on_gpu: bool) -> dict[tuple[str, str], MemoryEstimate]:
    """Return what every well-known model takes, by its name and scheme.

    Args:
        on_gpu: Keys and values in bf16, as on a GPU; else in float32, as on a CPU.
    """
    return {
        (model, scheme): estimate_memory(
            ModelFacts(spec=_well_known_spec(model)),
            scheme,
            on_gpu=on_gpu,
            context_tokens=DEFAULT_CONTEXT,
        )
        for model in WELL_KNOWN
        for scheme in SCHEMES
    }


@cache
def _well_known_spec(model: str) -> ModelSpec:
    return read_checkpoint(WELL_KNOWN[model])


def _describe_pack(info: GpuInfo, settings: Settings, explicit: str) -> dict[str, Any]:
    """Say which pack serving would use, what it lacks, or why there is none."""
    try:
        pack = find_pack(
            info,
            explicit=Path(explicit).expanduser() if explicit else None,
            sections=None,
            cache_dir=settings.cache_dir,
            build=False,
        )
    except (KernelPackError, NotFoundError) as error:
        problem = _as_json(error)
        targets = targets_for(info.target)
        if isinstance(error, KernelPackNotFound) and targets and find_spec("triton") is not None:
            name = targets[0].name
            problem = {
                "message": f"there is no kernel pack for {info.name} ({name}) yet",
                "hint": f"Serving builds one when it is first needed, which takes minutes; ahead "
                f"of that: zse kernels build --gpu {name} -o PACK.",
            }
        return {"pack": "", "num_kernels": 0, "missing": [], "skipped": {}, "problem": problem}
    return {
        "pack": pack.name,
        "num_kernels": len(pack),
        "missing": list(pack.missing(all_variants())),
        "skipped": dict(pack.skipped),
        "problem": None,
    }


def _as_json(problem: ZSEError | None) -> dict[str, str] | None:
    return {"message": problem.message, "hint": problem.hint} if problem else None


def print_report(report: dict[str, Any]) -> None:
    """Print what ``build_report`` returned, for a person."""
    cpu, memory, cuda = report["cpu"], report["memory"], report["cuda"]
    instructions = f", kernels for {cpu['instructions']}" if cpu["instructions"] else ""
    typer.echo(f"cpu      {cpu['model']}, {cpu['physical_cores']} cores{instructions}")
    _print_problem(cpu["problem"])
    typer.echo(
        f"memory   {memory_text(memory['total_bytes'])}, "
        f"{memory_text(memory['available_bytes'])} available"
    )
    typer.echo(f"driver   {'CUDA ' + cuda['driver_version'] if cuda['driver_version'] else 'none'}")
    _print_problem(cuda["problem"])
    _print_links(report["links"])
    for gpu in report["gpus"]:
        _print_gpu(gpu)
    if not report["gpus"]:
        _print_models("this machine's memory, on the CPU", report["cpu_models"])


def _print_links(links: list[dict[str, Any]]) -> None:
    """Say by what the GPUs of a pair reach each other: a line for each kind of link."""
    kinds: dict[str, list[str]] = {}
    for link in links:
        if link["ordinal"] < link["other"]:
            kinds.setdefault(link["kind"], []).append(f"{link['ordinal']}-{link['other']}")
    for kind, pairs in kinds.items():
        typer.echo(f"links    {_LINKS[kind]}: {', '.join(pairs)}")


def _print_gpu(gpu: dict[str, Any]) -> None:
    free = "free unknown" if gpu["problem"] else f"{memory_text(gpu['free_bytes'])} free"
    typer.echo(
        f"gpu {gpu['ordinal']}    {gpu['name']}, {gpu['architecture']}, "
        f"{memory_text(gpu['total_bytes'])}, {free}, {gpu['multiprocessors']} multiprocessors, "
        f"{gpu['bandwidth_bytes_per_second'] / 1e12:.2f} TB/s"
    )
    _print_problem(gpu["problem"])
    kernels = gpu["kernels"]
    if kernels["problem"]:
        typer.echo("kernels  none")
        _print_problem(kernels["problem"])
    else:
        typer.echo(f"kernels  {kernels['pack']}: {kernels['num_kernels']}, {_missing(kernels)}")
    if not gpu["problem"]:
        _print_models(f"the free memory of GPU {gpu['ordinal']}", gpu["models"])


def _missing(kernels: dict[str, Any]) -> str:
    missing = kernels["missing"]
    if not missing:
        return "none missing"
    more = f" and {len(missing) - _SHOWN_KEYS} more" if len(missing) > _SHOWN_KEYS else ""
    return f"{len(missing)} missing: {', '.join(missing[:_SHOWN_KEYS])}{more}"


def _print_problem(problem: dict[str, str] | None) -> None:
    if problem:
        typer.echo(f"         {problem['message']}")
        typer.echo(f"         {problem['hint']}")


def _print_models(where: str, fits: list[dict[str, Any]]) -> None:
    context = fits[0]["context_tokens"]
    typer.echo(f"\nmodels in {where}, with {context} tokens of context (- does not fit):")
    typer.echo(f"  {'':<14}" + "".join(f"{scheme:>11}" for scheme in SCHEMES))
    for model in dict.fromkeys(fit["model"] for fit in fits):
        row = [fit for fit in fits if fit["model"] == model]
        typer.echo(f"  {model:<14}" + "".join(f"{_cell(fit):>11}" for fit in row))


def _cell(fit: dict[str, Any]) -> str:
    if fit["fits"]:
        return memory_text(fit["total_bytes"])
    return f"{fit['gpus']} GPUs" if fit["gpus"] > 1 else "-"
