"""Health, in the dialects of the platforms, and the metrics route. None of these needs the model.

/health, /health/ready   200 when ready, else 503 with the phase and Retry-After
/health/live             200 from the first millisecond until the engine is beyond repair
/ping                    200 when ready, 503 when draining. While loading: 204, as RunPod wants it;
                         503 for SageMaker, which takes every 2xx for ready
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from zse.errors import EngineError, ShuttingDownError
from zse.serve.http.requests import json_response, state_of
from zse.serve.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.state import AppState

NO_CONTENT = 204


class UnhealthyError(EngineError):
    """The engine has crashed; only a restart helps."""

    http_status = 503
    error_code = "engine_crashed"


def _refuse_crashed(state: AppState) -> None:
    if not state.models.is_healthy:
        raise UnhealthyError("The engine has crashed; restart the server.")


async def ready(request: Request) -> Response:
    """Say whether requests are taken, and where the start is if not."""
    state = state_of(request)
    _refuse_crashed(state)
    if state.is_leaving:
        raise ShuttingDownError("The server is shutting down; send requests to another.")
    state.require_ready()  # its refusal is the answer while loading
    return json_response({"status": "ready", "phases": state.ledger.to_json()})


async def live(request: Request) -> Response:
    state = state_of(request)
    _refuse_crashed(state)
    return json_response({"status": "live", "phase": state.stage})


async def ping(request: Request) -> Response:
    """Answer the load balancers of RunPod and SageMaker."""
    state = state_of(request)
    _refuse_crashed(state)
    is_loading = not state.is_ready and not state.is_leaving
    if is_loading and state.options.loading_ping_status == NO_CONTENT:
        return Response(status_code=NO_CONTENT)
    return Response(status_code=200) if state.is_ready else await ready(request)


async def metrics(request: Request) -> Response:
    return Response(state_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE})
