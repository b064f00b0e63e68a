"""GET /api/stats: the machine, the GPUs and the models as they are now."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request

from zse.device.cgroup import read_text
from zse.device.open import cuda_device_present
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.seats import FleetStatus, fleet_status
from zse.serve.admin.shapes import Shape
from zse.serve.http.requests import state_of
from zse.serve.models import DEFAULT_ALIAS, TableEntry
from zse.serve.state import AppState

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/stats",
    tags=["stats"],
    dependencies=[Depends(Guard("metrics"))],
)


class CpuStats(Shape):
    model: str
    cores: int
    load_average: float
    """Processes that ran or waited in the last minute."""
    process_seconds: float
    """Time that this process has computed, over all its threads."""


class MemoryStats(Shape):
    """In bytes, within the container's limit."""

    total_bytes: int
    available_bytes: int
    process_bytes: int
    """Resident in this process."""


class GpuStats(Shape):
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    used_bytes: int
    used_percent: float
    problem: str | None
    """Why this process cannot use it."""


class AllGpuStats(Shape):
    available: bool
    count: int
    gpus: list[GpuStats]


class ModelStats(Shape):
    """One loaded model. Counters grow from its load on."""

    name: str
    aliases: list[str]
    is_default: bool
    device: str
    architecture: str
    quantization: str
    max_context: int
    file_bytes: int
    memory_bytes: dict[str, int]
    """What it holds on its device: weights, KV cache."""
    running: int
    waiting: int
    max_running: int
    kv_usage: float
    """Share of the KV blocks in use, 0 to 1."""
    kv_blocks: int
    prompt_tokens: int
    generated_tokens: int
    computed_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    draft_tokens: int
    """Guessed tokens that were checked."""
    accepted_draft_tokens: int
    """Of these, those that the model chose too."""
    steps: int


class AllModelStats(Shape):
    models: list[ModelStats]


class SystemStats(Shape):
    status: str
    """What the server is doing, in words."""
    uptime_seconds: float
    in_flight: int
    """Answers that run or wait."""
    max_in_flight: int
    cpu: CpuStats
    memory: MemoryStats
    gpu: AllGpuStats
    models: list[ModelStats]
    fleet: FleetStatus | None
    """Where each model is that comes and goes; None where none does."""
    cold_start: dict[str, dict[str, float]]
    """Phases of the start of this process, in ms since it began."""


@router.get("", summary="The machine, the GPUs and the models.")
async def system_stats(request: Request) -> SystemStats:
    return await look_at_system(state_of(request))


@router.get("/gpu", summary="The GPUs and their memory.")
async def gpu_stats() -> AllGpuStats:
    return await asyncio.to_thread(read_gpus)


@router.get("/models", summary="The loaded models: memory, work, what they have done.")
def model_stats(request: Request) -> AllModelStats:
    return AllModelStats(models=read_models(state_of(request)))


async def look_at_system(state: AppState) -> SystemStats:
    """Look at everything: the fleet here in the loop, which is where it lives, the rest beside."""
    fleet = None if state.fleet is None else fleet_status(state.fleet)
    return await asyncio.to_thread(_read_system, state, fleet)


def _read_system(state: AppState, fleet: FleetStatus | None) -> SystemStats:
    machine, used = probe(), resource.getrusage(resource.RUSAGE_SELF)
    return SystemStats(
        status=state.stage,
        uptime_seconds=round(state.ledger.now_ms() / 1000, 1),
        in_flight=state.in_flight,
        max_in_flight=state.max_admitted,
        cpu=CpuStats(
            model=machine.cpu_model,
            cores=machine.physical_cores,
            load_average=round(os.getloadavg()[0], 2),
            process_seconds=round(used.ru_utime + used.ru_stime, 1),
        ),
        memory=MemoryStats(
            total_bytes=machine.total_memory_bytes,
            available_bytes=machine.available_memory_bytes,
            process_bytes=resident_bytes(),
        ),
        gpu=read_gpus(),
        models=read_models(state),
        fleet=fleet,
        cold_start=state.ledger.to_json(),
    )


def resident_bytes() -> int:
    """Return the memory of this process that lies in RAM; 0 where the system does not say."""
    pages = read_text(Path("/proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def read_gpus() -> AllGpuStats:
    """Look at every GPU; where there is no driver, nothing is loaded to find out."""
    if not cuda_device_present():
        return AllGpuStats(available=False, count=0, gpus=[])
    gpus = [
        GpuStats(
            index=state.info.ordinal,
            name=state.info.name,
            total_bytes=state.info.total_bytes,
            free_bytes=state.info.free_bytes,
            used_bytes=state.info.total_bytes - state.info.free_bytes,
            used_percent=round(100 * (1 - state.info.free_bytes / state.info.total_bytes), 1),
            problem=None if state.problem is None else str(state.problem),
        )
        for state in survey_cuda().gpus
    ]
    return AllGpuStats(available=bool(gpus), count=len(gpus), gpus=gpus)


def read_models(state: AppState) -> list[ModelStats]:
    return [_model_stats(entry, is_default=entry.model is state.model) for entry in state.models]


def _model_stats(entry: TableEntry, *, is_default: bool) -> ModelStats:
    model, stats = entry.model, entry.model.engine.stats()
    details: dict[str, Any] = dict(model.details)
    return ModelStats(
        name=model.name,
        aliases=[*entry.aliases, *([DEFAULT_ALIAS] if is_default else [])],
        is_default=is_default,
        device=str(details.get("device", "")),
        architecture=str(details.get("architecture", "")),
        quantization=str(details.get("scheme", "")),
        max_context=model.max_context,
        file_bytes=int(details.get("file_bytes", 0)),
        memory_bytes=dict(model.engine.memory_bytes()),
        running=stats.num_running,
        waiting=stats.num_waiting,
        max_running=model.engine.max_running,
        kv_usage=round(stats.kv_usage, 4),
        kv_blocks=stats.kv_blocks_total,
        prompt_tokens=stats.prompt_tokens,
        generated_tokens=stats.generated_tokens,
        computed_tokens=stats.computed_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        preemptions=stats.preemptions,
        draft_tokens=stats.speculation.draft_tokens,
        accepted_draft_tokens=stats.speculation.accepted_tokens,
        steps=stats.steps,
    )
