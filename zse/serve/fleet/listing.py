"""The models of a fleet as /v1/models tells of them: those that are there, and those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.serve.fleet.seats import Seat
    from zse.serve.models import ModelTable
    from zse.serve.state import LoadedModel

Status = Literal["loading", "unloading", "unloaded", "failed"]


@record
class AbsentModel:
    """A model that takes no requests now: one that is asked for waits until it does."""

    name: str
    status: Status
    created: int
    """Unix seconds when it was last loaded; 0 where it never was."""
    max_context: int
    """Longest sequence in tokens that was served then; 0 where it never was."""
    parent: str = ""


def list_models(table: ModelTable, seats: Mapping[str, Seat]) -> list[LoadedModel | AbsentModel]:
    """Return the models of the seats, then what was loaded beside them."""
    found: list[LoadedModel | AbsentModel] = []
    here = {entry.model.name: entry for entry in table}
    for name, seat in seats.items():
        entry = here.pop(name, None)
        if entry is None:
            found.append(_absent(seat, _status_of(seat)))
        elif entry.is_hidden:
            found.append(_absent(seat, "unloading"))
        else:
            found += [entry.model, *entry.adapters.values()]
    for entry in here.values():
        found += [entry.model, *entry.adapters.values()]
    return found


def _status_of(seat: Seat) -> Status:
    if seat.is_loading:
        return "loading"
    return "unloaded" if seat.failure is None else "failed"


def _absent(seat: Seat, status: Status) -> AbsentModel:
    return AbsentModel(
        name=seat.name, status=status, created=seat.created, max_context=seat.max_context
    )
