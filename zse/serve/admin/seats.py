"""Models that come and go: what is known of each, in the answers of several routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zse.serve.admin.shapes import Shape

if TYPE_CHECKING:
    from zse.serve.fleet.fleet import Fleet


class SeatStatus(Shape):
    """A model that comes when a request names it."""

    name: str
    status: Literal["loaded", "loading", "unloading", "unloaded", "failed"]
    is_pinned: bool
    waiting: int
    """Requests that wait for it."""
    error: str | None
    """Why it could not be loaded the last time."""


class FleetStatus(Shape):
    """Of a server whose models come and go by themselves."""

    models: list[SeatStatus]
    max_resident: int
    """How many are there at once; 0 as many as fit."""
    sleep_level: int | None
    """None where the server is awake."""
    swap_seconds: float
    """What bringing a model takes, as it went lately."""


def fleet_status(fleet: Fleet) -> FleetStatus:
    """Look at every seat."""
    statuses = {model.name: model.status for model in fleet.listed()}
    return FleetStatus.model_validate(
        {
            "models": [
                {
                    "name": name,
                    "status": statuses[name],
                    "is_pinned": seat.is_pinned,
                    "waiting": len(seat.waiting),
                    "error": None if seat.failure is None else str(seat.failure.error),
                }
                for name, seat in list(fleet.seats.items())
            ],
            "max_resident": fleet.max_resident,
            "sleep_level": fleet.sleep.level,
            "swap_seconds": round(fleet.moves.usual_seconds, 3),
        }
    )
