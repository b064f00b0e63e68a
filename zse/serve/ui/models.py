"""The page of models: what is loaded, what may be, and the memory that is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.responses import Response

from zse.errors import UsageError, ZSEError
from zse.serve.admin.catalog import Catalog
from zse.serve.admin.loading import ModelLoader
from zse.serve.admin.models import (
    LoadRequest,
    UnloadRequest,
    list_models,
    load_model,
    unload_model,
)
from zse.serve.admin.swapping import PinRequest, SwapRequest, pin_model, swap_model
from zse.serve.fleet.routes import sleep, wake_up
from zse.serve.http.errors import describe
from zse.serve.http.requests import state_of
from zse.serve.ui.forms import read_form, whole_number
from zse.serve.ui.pages import refuse_forged, render

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request


async def show_models(request: Request) -> Response:
    """Answer ``GET /models``."""
    state = state_of(request)
    catalog = Catalog(state, state.one_of(ModelLoader).places)
    known = await asyncio.to_thread(catalog.search, "")
    loadable = [model.id for model in known if model.loadable]
    facts = await _facts(request)
    return render(request, "models.html", page="models", loadable=loadable, **facts)


async def show_part(request: Request) -> Response:
    """Answer ``GET /ui/models``: what changes on the page."""
    return render(request, "parts/models.html", **await _facts(request))


async def begin_load(request: Request) -> Response:
    """Load a model beside the others; the page says how far it is.

    Raises:
        ForgedRequestError: No page of ours asks for it.
    """
    refuse_forged(request)
    form = await read_form(request)
    try:
        fields = {
            "model": form.get("model", ""),
            "name": form.get("name") or None,
            "quantization": form.get("quantization") or None,
            "max_context": whole_number(form, "max_context"),
            "evict": "evict" in form,
            "wait": False,
        }
        asked = LoadRequest.model_validate(fields)
        await load_model(request, Response(), asked)
    except (ZSEError, ValidationError) as error:
        return await _with_problem(request, error)
    return await show_part(request)


async def begin_unload(request: Request) -> Response:
    """Let a model end its work and leave.

    Raises:
        ForgedRequestError: As ``begin_load``.
    """
    refuse_forged(request)
    form = await read_form(request)
    try:
        await unload_model(request, UnloadRequest(model=form.get("model", "")))
    except (ZSEError, ValidationError) as error:
        return await _with_problem(request, error)
    return await show_part(request)


async def pin(request: Request) -> Response:
    """Keep a model from leaving for another, or no longer.

    Raises:
        ForgedRequestError: As ``begin_load``.
    """
    refuse_forged(request)
    form = await read_form(request)
    try:
        is_pinned = form.get("pinned") == "1"
        asked = PinRequest(model=form.get("model", ""), pinned=is_pinned)
    except ValidationError as error:
        return await _with_problem(request, error)
    return await _after(request, pin_model(request, asked))


async def swap(request: Request) -> Response:
    """Bring a model that comes and goes; answers when it is there.

    Raises:
        ForgedRequestError: As ``begin_load``.
    """
    refuse_forged(request)
    form = await read_form(request)
    try:
        asked = SwapRequest(model=form.get("model", ""))
    except ValidationError as error:
        return await _with_problem(request, error)
    return await _after(request, swap_model(request, asked))


async def fall_asleep(request: Request) -> Response:
    """Let all models leave until somebody asks for one, or wakes them; ``level`` as in ``/sleep``.

    Raises:
        ForgedRequestError: As ``begin_load``.
    """
    refuse_forged(request)
    return await _after(request, sleep(request))


async def come_back(request: Request) -> Response:
    """Bring the models back that were there.

    Raises:
        ForgedRequestError: As ``begin_load``.
    """
    refuse_forged(request)
    return await _after(request, wake_up(request))


async def _after(request: Request, work: Awaitable[object]) -> Response:
    try:
        await work
    except ZSEError as error:
        return await _with_problem(request, error)
    return await show_part(request)


async def _with_problem(request: Request, error: ZSEError | ValidationError) -> Response:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        error = UsageError(f"{first['loc'][0]}: {first['msg']}")
    words = " ".join(filter(None, (describe(error)[1].message, error.hint)))
    return render(request, "parts/models.html", **{**await _facts(request), "problem": words})


async def _facts(request: Request) -> dict[str, Any]:
    found = await list_models(request)
    return {**found.model_dump(), "problem": ""}
