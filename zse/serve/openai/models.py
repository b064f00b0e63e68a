"""GET /v1/models and GET /v1/models/{id}: in OpenAI's form, or in Anthropic's for its clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zse.serve.http.requests import json_response, state_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.state import LoadedModel


def model_entry(model: LoadedModel) -> dict[str, Any]:
    """Return OpenAI's model object; ``max_model_len`` is vLLM's addition that tools read.

    So are ``root`` and ``parent``, which say what an adapter is added to.
    """
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "zse",
        "max_model_len": model.max_context,
        **({"root": model.parent, "parent": model.parent} if model.parent else {}),
    }


def anthropic_entry(model: LoadedModel) -> dict[str, Any]:
    """Return Anthropic's model object."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(model.created)),
        "lifecycle": "active",
        "max_input_tokens": model.max_context,
        "max_tokens": model.max_context,
    }


async def list_models(request: Request) -> Response:
    state = state_of(request)
    if state.fleet is not None:
        from zse.serve.fleet.listing import list_fleet

        return list_fleet(state, is_anthropics=_is_anthropics(request))
    state.require_model()
    models = [one for entry in state.models for one in (entry.model, *entry.adapters.values())]
    if not _is_anthropics(request):
        return json_response({"object": "list", "data": list(map(model_entry, models))})
    return json_response(anthropic_list(list(map(anthropic_entry, models))))


def anthropic_list(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return Anthropic's list of all models, on one page."""
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"], "has_more": False}
    return {"data": entries, **ends}


async def get_model(request: Request) -> Response:
    """Handle one model; its name may hold slashes, and ``default`` is an alias."""
    state, name = state_of(request), request.path_params["model"]
    if state.fleet is not None:
        from zse.serve.fleet.listing import get_of_fleet

        return get_of_fleet(state, name, is_anthropics=_is_anthropics(request))
    model = state.require_model(name)
    return json_response(anthropic_entry(model) if _is_anthropics(request) else model_entry(model))


def _is_anthropics(request: Request) -> bool:
    """Whether a client of Anthropic's API asks: all of them send this header."""
    return "anthropic-version" in request.headers
