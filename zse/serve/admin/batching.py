"""/api/batching: how many answers a model computes at once.

Batching is continuous: an answer joins the running ones at the next step and nobody waits for a
batch to fill. ``disable`` lets one answer run at a time, ``enable`` as many as the server was
started for. What runs goes on; the rest waits.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Request
from pydantic import Field

from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.http.requests import state_of
from zse.serve.models import TableEntry
from zse.serve.state import AppState

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/batching",
    tags=["batching"],
    dependencies=[Depends(Guard("admin"))],
)


class BatchingTarget(AskedShape):
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


Asked = Annotated[BatchingTarget | None, Body()]


class BatchingState:
    """How many answers the models of a server compute at once."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def enable(self, model: str | None = None) -> None:
        """Let a model compute as many answers at once as the server was started for.

        Args:
            model: Its name; all models without one.

        Raises:
            ModelNotFoundError: There is no such model.
        """
        self._limit(model, self._state.max_running)

    def disable(self, model: str | None = None) -> None:
        """Let a model compute one answer at a time; fails as ``enable``."""
        self._limit(model, 1)

    def status(self) -> BatchingStatus:
        batch = self._state.options.load.batch
        models = {entry.model.name: _of(entry) for entry in self._state.models}
        return BatchingStatus(
            enabled=all(one.enabled for one in models.values()),
            config=BatchingConfig(
                max_batch_size=batch.max_sequences, max_tokens_per_batch=batch.max_batch_tokens
            ),
            models=models,
        )

    def _limit(self, model: str | None, max_running: int) -> None:
        chosen = None if model is None else self._state.require_model(model)
        for entry in self._state.models:
            if chosen is None or entry.model is chosen:
                entry.model.engine.limit_running(max_running)


@router.get("", summary="Whether several answers are computed at once, and how many.")
def status(request: Request) -> BatchingStatus:
    return BatchingState(state_of(request)).status()


@router.post("/enable", summary="Compute as many answers at once as the server was started for.")
def enable(request: Request, which: Asked = None) -> BatchingStatus:
    batching = BatchingState(state_of(request))
    batching.enable(which.model if which else None)
    return batching.status()


@router.post("/disable", summary="Compute one answer at a time.")
def disable(request: Request, which: Asked = None) -> BatchingStatus:
    batching = BatchingState(state_of(request))
    batching.disable(which.model if which else None)
    return batching.status()


def _of(entry: TableEntry) -> ModelBatching:
    engine = entry.model.engine
    stats = engine.stats()
    return ModelBatching(
        enabled=engine.max_running > 1,
        running=stats.num_running,
        waiting=stats.num_waiting,
        max_running=engine.max_running,
    )
