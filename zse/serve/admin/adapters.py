"""/v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM's users know them; for admins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

from zse.engine.adapters import Adapter
from zse.errors import ModelNotFoundError, NotFoundError
from zse.models.lora.read import CONFIG_NAME, WEIGHTS_NAME
from zse.serve.adapters import as_model
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.models import Name
from zse.serve.admin.shapes import AskedShape
from zse.serve.http.requests import state_of
from zse.serve.models import DEFAULT_ALIAS, TableEntry
from zse.serve.state import AppState

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/v1",
    tags=["adapters"],
    dependencies=[Depends(Guard("admin"))],
)

FolderName = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


class LoadAdapterRequest(AskedShape):
    lora_name: Name
    """What requests call it."""
    lora_path: FolderName
    """Its folder on the server, in one of --lora-places."""
    base_model_name: Name | None = None
    """The model that it is added to; the default one when left out."""


class UnloadAdapterRequest(AskedShape):
    lora_name: Name
    lora_int_id: int | None = None
    """Is taken and means nothing: names are enough."""


class AdapterNotAllowedError(NotFoundError):
    """It is in no folder that this server loads adapters from; whether it exists is not said."""

    error_code = "adapter_not_found"


class AdapterLoader:
    """Loads adapters into the models of a server, one at a time."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._lock = asyncio.Lock()

    async def load(self, asked: LoadAdapterRequest) -> Adapter:
        """Read an adapter and let requests name it.

        Raises:
            AdapterNotAllowedError: Its folder is in no place.
            ModelNotFoundError: There is no such model.
            ZSEError: It is damaged, for another model, or its name is taken.
        """
        async with self._lock:
            entry = self._entry(asked.base_model_name)
            self._state.models.refuse_taken(asked.lora_name)
            folder = await asyncio.to_thread(self._allowed, asked.lora_path)
            adapters = entry.model.engine.adapters(self._state.options.load.lora)
            adapter = await asyncio.to_thread(adapters.load, asked.lora_name, folder)
            try:
                self._state.models.put_adapter(entry, as_model(entry.model, adapter))
            except BaseException:
                adapters.remove(adapter.name)
                raise
            return adapter

    async def unload(self, name: str) -> None:
        """Let no further request name an adapter; those that run end with it.

        Raises:
            ModelNotFoundError: There is none of this name.
        """
        async with self._lock:
            model = self._state.models.remove_adapter(name)
            model.engine.adapters(self._state.options.load.lora).remove(name)

    def _entry(self, name: str | None) -> TableEntry:
        entry = self._state.models.find(name or DEFAULT_ALIAS)
        if entry is None:
            raise ModelNotFoundError(f"No model '{name}' is loaded.", param="base_model_name")
        return entry

    def _allowed(self, text: str) -> Path:
        """Return a folder that lies in a place once links are followed, as its files do."""
        try:
            folder = Path(text).expanduser().resolve(strict=True)
            for place in map(Path, self._state.options.adapter_places):
                root = place.expanduser().resolve(strict=True)
                files = (folder / name for name in (CONFIG_NAME, WEIGHTS_NAME))
                if all(path.resolve().is_relative_to(root) for path in (folder, *files)):
                    return folder
        except (OSError, RuntimeError):  # not there, or a link to itself
            pass
        raise AdapterNotAllowedError(
            "The adapter is in no folder that this server may load adapters from.",
            hint="--lora-places names these folders.",
            param="lora_path",
        )


@router.post("/load_lora_adapter", summary="Let requests name a further LoRA adapter.")
async def load_lora_adapter(
    request: Request, asked: Annotated[LoadAdapterRequest, Body()]
) -> PlainTextResponse:
    await state_of(request).one_of(AdapterLoader).load(asked)
    return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")


@router.post("/unload_lora_adapter", summary="Let no further request name a LoRA adapter.")
async def unload_lora_adapter(
    request: Request, asked: Annotated[UnloadAdapterRequest, Body()]
) -> PlainTextResponse:
    await state_of(request).one_of(AdapterLoader).unload(asked.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")
