"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.serve.http.requests import json_response, state_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.state import LoadedModel


def model_entry(model: LoadedModel) -> dict[str, Any]:
    """Return OpenAI's model object; ``max_model_len`` is vLLM's addition that tools read."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "zse",
        "max_model_len": model.max_context,
    }


async def list_models(request: Request) -> Response:
    state = state_of(request)
    state.require_model()
    entries = [model_entry(entry.model) for entry in state.models]
    return json_response({"object": "list", "data": entries})


async def get_model(request: Request) -> Response:
    """Handle one model; its name may hold slashes, and ``default`` is an alias."""
    model = state_of(request).require_model(request.path_params["model"])
    return json_response(model_entry(model))
