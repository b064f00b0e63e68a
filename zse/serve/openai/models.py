"""GET /v1/models and GET /v1/models/{id}: in OpenAI's form, or in Anthropic's for its clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zse.errors import ModelNotFoundError
from zse.serve.http.requests import json_response, state_of
from zse.serve.models import DEFAULT_ALIAS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.fleet.listing import AbsentModel
    from zse.serve.state import AppState, LoadedModel


def model_entry(model: LoadedModel | AbsentModel) -> dict[str, Any]:
    """Return OpenAI's model object; ``max_model_len`` is vLLM's addition that tools read.

    So are ``root`` and ``parent``, which say what an adapter is added to. ``status`` is ours.
    """
    lengths = {"max_model_len": model.max_context} if model.max_context else {}
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "zse",
        **lengths,
        "status": model.status,
        **({"root": model.parent, "parent": model.parent} if model.parent else {}),
    }


def anthropic_entry(model: LoadedModel | AbsentModel) -> dict[str, Any]:
    """Return Anthropic's model object."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(model.created)),
        "lifecycle": "active",
        **(
            {"max_input_tokens": model.max_context, "max_tokens": model.max_context}
            if model.max_context
            else {}
        ),
    }


async def list_models(request: Request) -> Response:
    models = models_of(state_of(request))
    if not _is_anthropics(request):
        return json_response({"object": "list", "data": list(map(model_entry, models))})
    ends = {"first_id": models[0].name, "last_id": models[-1].name, "has_more": False}
    return json_response({"data": list(map(anthropic_entry, models)), **ends})


def models_of(state: AppState) -> list[LoadedModel | AbsentModel]:
    """Return the models that answer, and those that would come; the default is the first.

    Raises:
        LoadingError: There is none yet, or no longer.
    """
    if state.fleet is not None:
        state.require_started()
        return state.fleet.listed()
    state.require_model()
    return [one for entry in state.models for one in (entry.model, *entry.adapters.values())]


async def get_model(request: Request) -> Response:
    """Handle one model; its name may hold slashes, and ``default`` is an alias."""
    model = model_named(state_of(request), request.path_params["model"])
    return json_response(anthropic_entry(model) if _is_anthropics(request) else model_entry(model))


def model_named(state: AppState, name: str) -> LoadedModel | AbsentModel:
    """Return the model that answers to a name, without bringing it.

    Raises:
        ModelNotFoundError: There is none.
        LoadingError: There is none yet, or no longer.
    """
    if state.fleet is None:
        return state.require_model(name)
    name = state.fleet.default if name == DEFAULT_ALIAS else name
    listed = {one.name: one for one in models_of(state)}
    if (found := listed.get(name)) is not None:
        return found
    for entry in state.models:  # beside the fleet's, those that an admin loaded
        if not entry.is_hidden and entry.answers_to(name):
            return entry.model
    found = listed.get(state.fleet.seat_of(name).name)
    if found is None:
        raise ModelNotFoundError(f"The model '{name[:200]}' does not exist.", param="model")
    return found


def _is_anthropics(request: Request) -> bool:
    """Whether a client of Anthropic's API asks: all of them send this header."""
    return "anthropic-version" in request.headers
