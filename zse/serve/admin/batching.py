"""/api/batching: how many answers a model computes at once.

Batching is continuous: an answer joins the running ones at the next step and nobody waits for a
batch to fill. ``disable`` lets one answer run at a time, ``enable`` as many as the server was
started for. What runs goes on; the rest waits.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Request
from pydantic import Field

from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.http.requests import state_of
from zse.serve.models import TableEntry
from zse.serve.state import AppState

router = APIRouter(
    prefix="/api/batching", tags=["batching"], dependencies=[Depends(Guard("admin"))]
)


class Which(AskedShape):
    model: Annotated[str, Field(max_length=512)] | None = None
    """The model that is meant; without one all are."""


class ModelBatching(Shape):
    enabled: bool
    running: int
    waiting: int
    max_running: int
    """Answers that run at once now."""


class BatchingConfig(Shape):
    """What the server was started with."""

    max_batch_size: int
    max_tokens_per_batch: int
    batch_wait_timeout_ms: int = 0
    """Nobody waits for a batch to fill."""


class BatchingStatus(Shape):
    enabled: bool
    """Whether all models compute several answers at once."""
    config: BatchingConfig
    models: dict[str, ModelBatching]


Asked = Annotated[Which | None, Body()]


@router.get("", summary="Whether several answers are computed at once, and how many.")
def status(request: Request) -> BatchingStatus:
    return _status(state_of(request))


@router.post("/enable", summary="Compute as many answers at once as the server was started for.")
def enable(request: Request, which: Asked = None) -> BatchingStatus:
    return _limit(state_of(request), which, state_of(request).max_running)


@router.post("/disable", summary="Compute one answer at a time.")
def disable(request: Request, which: Asked = None) -> BatchingStatus:
    return _limit(state_of(request), which, 1)


def _limit(state: AppState, which: Which | None, max_running: int) -> BatchingStatus:
    asked = which.model if which is not None else None
    chosen = None if asked is None else state.require_model(asked)
    for entry in state.models:
        if chosen is None or entry.model is chosen:
            entry.model.engine.limit_running(max_running)
    return _status(state)


def _status(state: AppState) -> BatchingStatus:
    batch = state.options.load.batch
    models = {entry.model.name: _of(entry) for entry in state.models}
    return BatchingStatus(
        enabled=all(one.enabled for one in models.values()),
        config=BatchingConfig(
            max_batch_size=batch.max_sequences, max_tokens_per_batch=batch.max_batch_tokens
        ),
        models=models,
    )


def _of(entry: TableEntry) -> ModelBatching:
    engine = entry.model.engine
    stats = engine.stats()
    return ModelBatching(
        enabled=engine.max_running > 1,
        running=stats.num_running,
        waiting=stats.num_waiting,
        max_running=engine.max_running,
    )
