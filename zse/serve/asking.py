"""Which model answers a request: one that is there, or one that the fleet brings.

The request keeps it until its end, and the work that outlives the request until the end of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import InvalidParameterError
from zse.serve.http.requests import state_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.state import LoadedModel


async def model_for(request: Request, name: str | None = None) -> LoadedModel:
    """Return the model that answers to ``name``, the default where there is none.

    Raises:
        ShuttingDownError: The server is draining.
        LoadingError: There is no model yet, or no longer.
        ModelNotFoundError: The name is no model's, nor ``default``.
        ZSEError: As ``Fleet.enter``, where there is a fleet.
    """
    state = state_of(request)
    if state.fleet is None:
        model = state.require_model(name)
        model.uses.begin()
    else:
        model = await state.fleet.enter(request, name)
    if (earlier := request.state.use) is not None:
        earlier.end()
    request.state.use = model.uses
    return model


async def writer_for(request: Request, name: str | None = None) -> LoadedModel:
    """Return the model that answers to ``name``, which must write text.

    Raises:
        InvalidParameterError: It makes vectors of texts, or scores.
        ZSEError: As ``model_for``.
    """
    model = await model_for(request, name)
    if model.task != "text":
        routes = "/v1/embeddings" if model.task == "vectors" else "/v1/rerank and /v1/score"
        raise InvalidParameterError(
            f"The model '{model.name}' makes {model.task} of texts and writes none: use {routes}.",
            param="model",
        )
    return model


def let_go(request: Request) -> None:
    """End the use of a model that has done its part: the one that answers may need its memory."""
    if (use := request.state.use) is not None:
        use.end()
        request.state.use = None
