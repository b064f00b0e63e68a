"""How busy the server is, in one short answer: what a router of replicas reads each second.

The same numbers as in /metrics, added up over models, without the text of a hundred others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import ShuttingDownError
from zse.serve.http.requests import json_response, state_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def load_report(request: Request) -> Response:
    """Answer as readiness does where requests are not taken, else with numbers."""
    state = state_of(request)
    if state.is_leaving:
        raise ShuttingDownError("The server is shutting down; send requests to another.")
    state.require_any()
    stats = [entry.model.engine.stats() for entry in state.models]
    num_blocks = sum(each.kv_blocks_total for each in stats)
    num_used = sum(each.kv_blocks_used for each in stats)
    level = 0 if state.fleet is None else state.fleet.sleep.level or 0
    return json_response(
        {
            "running": sum(each.num_running for each in stats),
            "waiting": sum(each.num_waiting for each in stats),
            "in_flight": state.in_flight,
            "kv_usage": round(num_used / num_blocks, 6) if num_blocks else 0.0,
            "sleep_level": level,
        }
    )
