"""/api/keys and /api/auth: API keys, for admins. What `zse api-key` does on the machine itself."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from msgspec.structs import replace
from pydantic import Field

from zse.errors import RefusedError
from zse.serve.access.caller import Scope
from zse.serve.access.key_file import KeyFile, no_such_key
from zse.serve.access.keys import LAST_MOMENT, MAX_LIMIT, MAX_WEIGHT, ApiKey, KeyTable, make_key
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.http.requests import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.access.policy import Access

router = APIRouter(
    route_class=BoundedRoute, prefix="/api", tags=["keys"], dependencies=[Depends(Guard("admin"))]
)
Name = Annotated[str, Path(max_length=64, description="What the key is called.")]


class KeyAsked(AskedShape):
    """A key to make."""

    name: str = Field(max_length=64)
    scope: Scope = "inference"
    rate_limit: int = Field(0, ge=0, le=MAX_LIMIT)
    """Requests in any minute; 0 as many as come."""
    tokens_per_minute: int = Field(0, ge=0, le=MAX_LIMIT)
    """Read and written; 0 as many as come."""
    expires: int | None = Field(None, ge=0, le=LAST_MOMENT)
    """Unix seconds; null never."""
    priority: int = Field(0, ge=-100, le=100)
    weight: int = Field(1, ge=1, le=MAX_WEIGHT)


class KeyChange(AskedShape):
    enabled: bool


class UseShown(Shape):
    """What was used of a limit in the last minute, as far as this server knows."""

    limit: int
    remaining: int
    reset_seconds: float


class KeyShown(Shape):
    """A key, but for what it is."""

    name: str
    key_id: str
    scope: Scope
    state: str
    """active, disabled or expired."""
    created: int
    """Unix seconds."""
    expires: int | None
    rate_limit: int
    tokens_per_minute: int
    priority: int
    weight: int
    use: dict[str, UseShown] | None = None
    """Of requests and of tokens, where one key was asked for."""


class KeyMade(KeyShown):
    key: str
    """The key itself, this once."""


class Keys(Shape):
    keys: list[KeyShown]


class Asking(Shape):
    enabled: bool
    """Whether programs on this machine are asked for a key; others always are."""
    asks_for_key: bool
    """Whether this server asks now."""


@router.get("/keys", summary="List the API keys, never what they are.")
async def list_keys(request: Request) -> Keys:
    return Keys(keys=[KeyShown(**_facts(key)) for key in _access(request).keyring.known])


@router.post("/keys", summary="Make an API key; it is shown this once.", status_code=201)
async def create_key(request: Request, asked: KeyAsked) -> KeyMade:
    new = make_key(**asked.model_dump())
    await _change(request, lambda file: file.add(new.key))
    return KeyMade(key=new.secret, **_facts(new.key))


@router.get("/keys/{name}", summary="Show an API key and what it has used.")
async def get_key(request: Request, name: Name) -> KeyShown:
    access = _access(request)
    key = next((key for key in access.keyring.known if key.name == name), None)
    if key is None:
        raise no_such_key(name)
    use = {}
    if (caller := key.to_caller()).is_limited:
        uses = await (await access.limits()).use_of(caller)
        use = {kind: UseShown(**vars(one)) for kind, one in uses.items()}
    return KeyShown(**_facts(key), use=use)


@router.patch("/keys/{name}", summary="Enable or disable an API key.")
async def change_key(request: Request, name: Name, change: KeyChange) -> KeyShown:
    edit = partial(replace, enabled=change.enabled)
    await _change(request, lambda file: file.update(name, edit))
    return await get_key(request, name)


@router.post("/keys/{name}/reset", summary="Forget what an API key has used of its limits.")
async def reset_key(request: Request, name: Name) -> KeyShown:
    def edit(key: ApiKey) -> ApiKey:
        return replace(key, num_resets=key.num_resets + 1)

    await _change(request, lambda file: file.update(name, edit))
    return await get_key(request, name)


@router.delete("/keys/{name}", summary="Remove an API key.", status_code=204)
async def delete_key(request: Request, name: Name) -> None:
    await _change(request, lambda file: file.update(name, lambda _: None))


@router.get("/auth", summary="Whether keys are asked for.")
async def asking(request: Request) -> Asking:
    access = _access(request)
    return Asking(enabled=access.keyring.is_enabled, asks_for_key=access.asks_for_key)


@router.post("/auth/enable", summary="Ask programs on this machine for keys.")
async def enable(request: Request) -> Asking:
    return await _switch(request, is_enabled=True)


@router.post("/auth/disable", summary="Ask programs on this machine for no keys.")
async def disable(request: Request) -> Asking:
    return await _switch(request, is_enabled=False)


async def _switch(request: Request, *, is_enabled: bool) -> Asking:
    def edit(table: KeyTable) -> KeyTable:
        return replace(table, enabled=is_enabled)

    await _change(request, lambda file: file.change(edit))
    return await asking(request)


async def _change(request: Request, change: Callable[[KeyFile], object]) -> None:
    """Change the file beside the loop, and know at once what it says.

    Raises:
        RefusedError: This server has no file of keys.
    """
    keyring = _access(request).keyring
    if keyring.key_file is None:
        raise RefusedError("This server has no file of API keys.")
    await asyncio.to_thread(change, keyring.key_file)
    keyring.look()


def _access(request: Request) -> Access:
    return state_of(request).access


def _facts(key: ApiKey) -> dict[str, Any]:
    shown = {name: getattr(key, name) for name in KeyShown.model_fields if hasattr(key, name)}
    return shown | {"state": key.state(time.time())}
