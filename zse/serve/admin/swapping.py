"""/api/models/pin and /swap: which model stays, and which one is there now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Body, Depends, Request

from zse.errors import RefusedError
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.models import Name
from zse.serve.admin.seats import FleetStatus, fleet_status
from zse.serve.admin.shapes import AskedShape
from zse.serve.http.requests import state_of

if TYPE_CHECKING:
    from zse.serve.fleet.fleet import Fleet

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/models",
    tags=["models"],
    dependencies=[Depends(Guard("admin"))],
)


class PinRequest(AskedShape):
    model: Name
    """One of those that come and go."""
    pinned: bool = True
    """Whether it stays where it is while others come and go; until the server ends."""


class SwapRequest(AskedShape):
    model: Name
    """One of those that come and go."""


@router.post("/pin", summary="Keep a model from leaving for another, or no longer.")
async def pin_model(request: Request, asked: Annotated[PinRequest, Body()]) -> FleetStatus:
    fleet = _fleet_of(request)
    fleet.pin(asked.model, is_pinned=asked.pinned)
    return fleet_status(fleet)


@router.post("/swap", summary="Bring a model now, in place of the least recently used.")
async def swap_model(request: Request, asked: Annotated[SwapRequest, Body()]) -> FleetStatus:
    state_of(request).require_started()
    fleet = _fleet_of(request)
    fleet.refuse_closed()
    await fleet.bring(fleet.seat_of(asked.model))
    return fleet_status(fleet)


def _fleet_of(request: Request) -> Fleet:
    """Return the fleet of a server whose models come and go.

    Raises:
        RefusedError: They do not.
    """
    fleet = state_of(request).fleet
    if fleet is None or not fleet.seats:
        raise RefusedError(
            "no models come and go in this server, so none can be pinned or swapped in",
            hint="Start it with --models, or load and unload models by hand.",
        )
    return fleet
