"""POST /sleep, POST /wake_up and GET /is_sleeping, as users of vLLM know them.

They work for every server, also for one of a single model. Neither change has a body, so any page
in a browser could ask for it in the name of whoever uses the machine: pages of others are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from zse.errors import InvalidParameterError
from zse.serve.admin.guard import refuse_foreign_page
from zse.serve.fleet.fleet import Fleet
from zse.serve.fleet.sleep import LEVELS
from zse.serve.http.requests import json_response, state_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.state import AppState

TAGS = ("weights", "kv_cache")


async def sleep(request: Request) -> Response:
    """Let answers end and all models leave; answer when their memory has been given back.

    Raises:
        ForeignPageError: A page of another origin asks.
        InvalidParameterError: There is no such level.
        ModelBusyError: As ``Sleep.begin``.
    """
    refuse_foreign_page(request)
    level = request.query_params.get("level", "1")
    if level not in map(str, LEVELS):
        raise InvalidParameterError(
            f"'level' is {level[:20]!r}, expected 1, which keeps what a quick return stands on, or "
            "2, which drops it.",
            param="level",
        )
    await _fleet_of(request).sleep.begin(int(level))
    return Response()


async def wake_up(request: Request) -> Response:
    """Bring the models back that were there; answer when they are.

    Raises:
        ForeignPageError: A page of another origin asks.
        InvalidParameterError: There is no such tag.
        ModelUnavailableError: As ``Sleep.end``.
    """
    refuse_foreign_page(request)
    tags = request.query_params.getlist("tags")
    if unknown := [tag for tag in tags if tag not in TAGS]:
        raise InvalidParameterError(
            f"'tags' holds {unknown[0][:50]!r}, expected {' or '.join(TAGS)}; a model comes back "
            "whole, whichever is named.",
            param="tags",
        )
    await _fleet_of(request).sleep.end()
    return Response()


async def is_sleeping(request: Request) -> Response:
    state = state_of(request)
    state.require_started()
    asleep = state.fleet is not None and state.fleet.sleep.level is not None
    return json_response({"is_sleeping": asleep})


def _fleet_of(request: Request) -> Fleet:
    """Return the fleet; of a server with none, its models become one."""
    state: AppState = state_of(request)
    state.require_started()
    if state.fleet is None:
        state.fleet = Fleet(state)
    return state.fleet
