"""The models of a fleet as /v1/models tells of them: those that are there, and those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from zse.errors import ModelNotFoundError
from zse.serve.http.requests import json_response
from zse.serve.models import DEFAULT_ALIAS
from zse.serve.openai.models import anthropic_entry, anthropic_list, model_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.responses import Response

    from zse.serve.fleet.fleet import Fleet
    from zse.serve.fleet.seats import Seat
    from zse.serve.state import AppState

SeatStatus = Literal["loaded", "loading", "unloading", "unloaded", "failed"]


def status_of(fleet: Fleet, seat: Seat, *, is_here: bool) -> SeatStatus:
    """Return where a model is."""
    if fleet.moves.entry_of(seat) is not None:
        return "loaded"
    if is_here:
        return "unloading"
    if seat.is_loading:
        return "loading"
    return "unloaded" if seat.failure is None else "failed"


def list_fleet(state: AppState, *, is_anthropics: bool) -> Response:
    """Answer with all models; what is not there comes when it is asked for."""
    state.require_started()
    if is_anthropics:
        entries = [_as_anthropics(entry) for entry in _entries(state)]
        return json_response(anthropic_list(entries))
    return json_response({"object": "list", "data": list(_entries(state))})


def get_of_fleet(state: AppState, name: str, *, is_anthropics: bool) -> Response:
    """Answer with one model.

    Raises:
        ModelNotFoundError: There is none of this name.
    """
    state.require_started()
    fleet = state.fleet
    assert fleet is not None
    name = fleet.default if name == DEFAULT_ALIAS else name
    if is_anthropics and (model := state.models.answering(name)) is not None:
        return json_response(anthropic_entry(model))
    found = next((entry for entry in _entries(state) if entry["id"] == name), None)
    if found is None:
        raise ModelNotFoundError(f"The model '{name[:200]}' does not exist.", param="model")
    return json_response(_as_anthropics(found) if is_anthropics else found)


def _entries(state: AppState) -> Iterator[dict[str, Any]]:
    fleet = state.fleet
    assert fleet is not None
    here = {entry.model.name: entry for entry in state.models}
    for name, seat in fleet.seats.items():
        entry = here.pop(name, None)
        status = status_of(fleet, seat, is_here=entry is not None)
        if entry is None:
            yield {**_absent(seat), "status": status}
            continue
        for model in (entry.model, *entry.adapters.values()):
            yield {**model_entry(model), "status": status}
    for entry in here.values():  # what an admin loaded beside them
        for model in (entry.model, *entry.adapters.values()):
            yield {**model_entry(model), "status": "loaded"}


def _absent(seat: Seat) -> dict[str, Any]:
    known = {"max_model_len": seat.facts["max_context"]} if seat.facts else {}
    return {
        "id": seat.name,
        "object": "model",
        "created": seat.facts.get("created", 0),
        "owned_by": "zse",
        **known,
    }


def _as_anthropics(entry: dict[str, Any]) -> dict[str, Any]:
    import time

    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry["created"])),
        "lifecycle": "active",
    }
