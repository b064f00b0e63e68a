"""Pins that change while the server runs: which models never leave for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import RefusedError

if TYPE_CHECKING:
    from zse.serve.fleet.fleet import Fleet


def fleet_here(fleet: Fleet | None) -> Fleet:
    """Return the fleet of a server whose models come and go.

    Raises:
        RefusedError: They do not.
    """
    if fleet is None or not fleet.seats:
        raise RefusedError(
            "no models come and go in this server, so none can be pinned or swapped in",
            hint="Start it with --models, or load and unload models by hand.",
        )
    return fleet


def pin(fleet: Fleet, name: str, *, is_pinned: bool) -> None:
    """Say whether a model may leave for another; one that is away comes when it is asked for.

    Raises:
        ModelNotFoundError: As ``Fleet.seat_of``.
        RefusedError: No other model could come any more.
    """
    seat = fleet.seat_of(name)
    pinned = sum(1 for each in fleet.seats.values() if each.is_pinned or each is seat)
    most = fleet.max_resident
    if is_pinned and most and pinned >= most and len(fleet.seats) > pinned:
        raise RefusedError(
            f"{pinned} pinned models would leave no room for the others of --max-resident {most}",
            hint="Unpin another first, or raise --max-resident.",
        )
    seat.is_pinned = is_pinned
