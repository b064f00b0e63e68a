"""/api/models: what is loaded, what may be, and the memory that is left for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from pydantic import AliasChoices, Field

from zse.models.registry import Category
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.catalog import Catalog, KnownModelEntry, ModelVerdict
from zse.serve.admin.guard import Guard
from zse.serve.admin.loading import ModelLoader
from zse.serve.admin.memory import room_for_models
from zse.serve.admin.orders import Load, LoadOrder
from zse.serve.admin.places import MAX_NAME
from zse.serve.admin.seats import FleetStatus, fleet_status
from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.http.errors import describe
from zse.serve.http.requests import state_of
from zse.serve.load import model_name_of
from zse.serve.models import TableEntry
from zse.serve.state import AppState

if TYPE_CHECKING:
    from zse.serve.fleet.fleet import Fleet

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/models",
    tags=["models"],
    dependencies=[Depends(Guard("admin"))],
)

Scheme = Literal["int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8", "fp16", "bf16"]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f\x7f]+$")]
_MAX_PATIENCE_SECONDS = 600.0


class LoadRequest(AskedShape):
    model: Name
    """A name that GET /api/models/search lists, or an address in one of the server's places."""
    name: Name | None = None
    """What requests call it; its own name when left out."""
    aliases: Annotated[list[Name], Field(default_factory=list, max_length=16)]
    """Other names that it answers to; * stands for any text."""
    quantization: Annotated[
        Scheme | None, Field(validation_alias=AliasChoices("quantization", "quant"))
    ] = None
    """Scheme to convert a checkpoint to."""
    max_context: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Longest sequence in tokens; 0 means what the server was started with."""
    evict: bool = False
    """Whether idle models may be unloaded for it, the least recently asked first."""
    wait: bool = True
    """Answer when it is loaded; else at once, and GET /api/models says how far it is."""


class UnloadRequest(AskedShape):
    model: Name
    force: bool = False
    """End its work in an error instead of waiting for it."""
    timeout_seconds: Annotated[float, Field(ge=0, le=_MAX_PATIENCE_SECONDS)] | None = None
    """How long its work may take to end; the server's drain time when left out."""


class ModelStatus(Shape):
    """A model of this process."""

    name: str
    aliases: list[str]
    is_default: bool
    status: Literal["loaded", "unloading"]
    quantization: str
    device: str
    max_context: int
    memory_bytes: dict[str, int]
    in_flight: int
    idle_seconds: float
    """Since a request last named it."""


class LoadStatus(Shape):
    """A load that runs, or the last one that did."""

    model: str
    name: str
    status: Literal["loading", "loaded", "failed"]
    stage: str
    """What it is busy with, in words."""
    seconds: float
    phases: dict[str, dict[str, float]]
    """What took the time, in ms since it began."""
    evicted: list[str]
    error: str | None
    hint: str | None


class MemoryStatus(Shape):
    """Of the device that models run on."""

    limit_bytes: int
    """What all models together may take; 0 where no limit was set."""
    used_bytes: int
    left_bytes: int
    on_gpu: bool


class ModelList(Shape):
    models: list[ModelStatus]
    load: LoadStatus | None
    memory: MemoryStatus
    fleet: FleetStatus | None
    """None where no model comes by itself."""


class ModelRegistry(Shape):
    total: int
    models: list[KnownModelEntry]


class ModelSearch(Shape):
    query: str
    total: int
    models: list[KnownModelEntry]


@router.get("", summary="The loaded models, a load that runs, and the memory that is left.")
async def list_models(request: Request) -> ModelList:
    state = state_of(request)
    room = await asyncio.to_thread(room_for_models, state.options, state.models)
    latest = state.one_of(ModelLoader).latest
    return ModelList(
        models=[_model_status(entry, state) for entry in state.models],
        load=None if latest is None else _load_status(latest),
        memory=MemoryStatus(**asdict(room)),
        fleet=None if state.fleet is None else fleet_status(state.fleet),
    )


@router.post(
    "/load",
    summary="Load a model beside the others.",
    responses={202: {"model": LoadStatus, "description": "Loading"}},
)
async def load_model(
    request: Request, response: Response, asked: Annotated[LoadRequest, Body()]
) -> LoadStatus:
    state = state_of(request)
    loader = state.one_of(ModelLoader)
    placed = await asyncio.to_thread(loader.places.find, asked.model)
    own_aliases = state.options.aliases if placed.reference == state.options.model else ()
    order = LoadOrder(
        placed=placed,
        name=asked.name or model_name_of(placed.name),
        aliases=tuple(asked.aliases) or own_aliases,
        quant=asked.quantization,
        max_context=asked.max_context,
        evicts=asked.evict,
    )
    load = loader.begin(order)
    if state.fleet is not None:
        _end_sleep_after(load, state.fleet)
    if asked.wait:
        await load.wait()
    else:
        response.status_code = 202
    return _load_status(load)


def _end_sleep_after(load: Load, fleet: Fleet) -> None:
    """Have the server be awake once a model is there that an admin wanted."""
    loop = asyncio.get_running_loop()

    def note() -> None:
        if load.error is None:
            fleet.sleep.end_for_load()

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(note)

    load.done.add_done_callback(tell)


@router.post("/unload", summary="Let a model end its work and give its memory back.")
async def unload_model(request: Request, asked: Annotated[UnloadRequest, Body()]) -> ModelList:
    state = state_of(request)
    patience_seconds = asked.timeout_seconds
    if patience_seconds is None:
        patience_seconds = min(state.options.drain_seconds, _MAX_PATIENCE_SECONDS)
    await state.one_of(ModelLoader).unload(
        asked.model, force=asked.force, patience_seconds=patience_seconds
    )
    return await list_models(request)


@router.get("/registry", summary="Known models of the families that are supported.")
async def registry(
    request: Request,
    category: Annotated[Category | None, Query(description="Only these.")] = None,
    memory_gb: Annotated[
        float | None, Query(gt=0, le=1e6, description="Only what fits, in GB, at INT4.")
    ] = None,
) -> ModelRegistry:
    models = await asyncio.to_thread(_catalog(request).known, category, memory_gb)
    return ModelRegistry(total=len(models), models=models)


@router.get("/search", summary="Search the known models and those in the server's places.")
async def search(
    request: Request,
    q: Annotated[str, Query(max_length=200, description="Words of the name, any case.")] = "",
) -> ModelSearch:
    models = await asyncio.to_thread(_catalog(request).search, q)
    return ModelSearch(query=q, total=len(models), models=models)


@router.get(
    "/check/{model_id:path}", summary="Whether a model is supported, may be loaded, and fits."
)
async def check(
    request: Request,
    model_id: str,
    max_context: Annotated[
        int, Query(ge=0, le=1 << 24, description="Tokens of context to have room for.")
    ] = 0,
) -> ModelVerdict:
    return await asyncio.to_thread(_catalog(request).check, model_id[:MAX_NAME], max_context)


def _catalog(request: Request) -> Catalog:
    state = state_of(request)
    return Catalog(state, state.one_of(ModelLoader).places)


def _model_status(entry: TableEntry, state: AppState) -> ModelStatus:
    model = entry.model
    details: dict[str, Any] = dict(model.details)
    return ModelStatus(
        name=model.name,
        aliases=list(entry.aliases),
        is_default=model is state.model,
        status="unloading" if entry.is_hidden else "loaded",
        quantization=str(details.get("scheme", "")),
        device=str(details.get("device", "")),
        max_context=model.max_context,
        memory_bytes=model.engine.memory_bytes(),
        in_flight=entry.num_active,
        idle_seconds=round(time.monotonic() - entry.last_asked, 1),
    )


def _load_status(load: Load) -> LoadStatus:
    progress, error = load.progress, load.error
    ended = {"ready": "loaded", "failed": "failed"}
    return LoadStatus.model_validate(
        {
            "model": load.order.placed.name,
            "name": load.order.name,
            "status": ended.get(progress.phase, "loading") if load.is_over else "loading",
            "stage": progress.stage,
            "seconds": round(load.seconds or progress.ledger.now_ms() / 1000, 2),
            "phases": progress.ledger.to_json(),
            "evicted": load.evicted,
            "error": None if error is None else describe(error)[1].message,
            "hint": None if error is None else error.hint,
        }
    )
