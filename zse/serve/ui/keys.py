"""The page of API keys: made, limited, switched off, revoked."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from zse.errors import NotFoundError, RefusedError, UsageError, ZSEError
from zse.serve.access.caller import SCOPES, caller_of
from zse.serve.access.key_file import no_such_key
from zse.serve.access.keys import MAX_LIMIT, make_key
from zse.serve.http.errors import describe
from zse.serve.http.requests import state_of
from zse.serve.ui.forms import read_form, whole_number
from zse.serve.ui.lockout import unless_locked_out
from zse.serve.ui.login import begin_session
from zse.serve.ui.pages import refuse_forged, render

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.access.keys import ApiKey, KeyTable, NewKey

_DAY_SECONDS = 86_400


async def show_keys(request: Request) -> Response:
    """Answer ``GET /keys``."""
    return render(request, "keys.html", page="keys", **_facts(request))


async def create_key(request: Request) -> Response:
    """Make a key, which is shown this once; who makes the first one is logged in with it.

    Raises:
        ForgedRequestError: No page of ours asks for it.
    """
    refuse_forged(request)
    form = await read_form(request)
    try:
        new = _new_key(form)

        def add(table: KeyTable) -> KeyTable:
            if table.find(new.key.name):
                raise UsageError(f"there is an API key {new.key.name!r} already")
            return replace(table, keys=(*table.keys, new.key))

        await _change(request, add)
    except ZSEError as error:
        return _part(request, problem=_words(error))
    answer = _part(request, made={"name": new.key.name, "secret": new.secret})
    told: dict[str, Any] = {"zse:made": {}}
    if new.key.scope == "admin" and not caller_of(request.scope).key_id:
        session = begin_session(request, answer, new.key.key_id)
        told["zse:session"] = {"csrf": session.csrf}
    answer.headers["hx-trigger"] = json.dumps(told)
    return answer


async def change_key(request: Request) -> Response:
    """Switch a key on or off, limit it, forget what it has used, or revoke it.

    Raises:
        ForgedRequestError: As ``create_key``.
        NotFoundError: There is no such thing to do.
    """
    refuse_forged(request)
    form = await read_form(request)
    name, what = form.get("name", ""), request.path_params["what"]
    edits: dict[str, Callable[[ApiKey], ApiKey | None]] = {
        "enable": lambda key: replace(key, enabled=True),
        "disable": lambda key: replace(key, enabled=False),
        "reset": lambda key: replace(key, num_resets=key.num_resets + 1),
        "revoke": lambda _: None,
        "limit": lambda key: replace(key, **_limits(form)),
    }
    if what not in edits:
        raise NotFoundError(f"There is nothing called {what[:20]!r} to do with a key.")

    def edit(table: KeyTable) -> KeyTable:
        old = table.find(name)
        if old is None:
            raise no_such_key(name)
        new = edits[what](old)
        kept = (new if key is old else key for key in table.keys)
        return replace(table, keys=tuple(key for key in kept if key is not None))

    return await _changed(request, edit)


async def switch_asking(request: Request) -> Response:
    """Ask programs on this machine for keys, or no longer.

    Raises:
        ForgedRequestError: As ``create_key``.
    """
    refuse_forged(request)
    is_enabled = (await read_form(request)).get("enabled") == "1"
    if is_enabled and not caller_of(request.scope).key_id:
        problem = "Log in with an admin's key first: this page would be closed to you."
        return _part(request, problem=problem)
    return await _changed(request, lambda table: replace(table, enabled=is_enabled))


async def _changed(request: Request, edit: Callable[[KeyTable], KeyTable]) -> Response:
    try:
        await _change(request, edit)
    except ZSEError as error:
        return _part(request, problem=_words(error))
    return _part(request)


async def _change(request: Request, edit: Callable[[KeyTable], KeyTable]) -> None:
    access = state_of(request).access
    file = access.keyring.key_file
    if file is None:
        raise RefusedError("This server has no file of API keys.")
    checked = unless_locked_out(access, caller_of(request.scope), edit)
    await asyncio.to_thread(file.change, checked)
    access.keyring.look()


def _new_key(form: dict[str, str]) -> NewKey:
    days = whole_number(form, "days")
    expires = int(time.time()) + days * _DAY_SECONDS if days else None
    scope = form.get("scope", "inference")
    if scope not in SCOPES:
        raise UsageError(f"the scope is {scope[:20]!r}, expected one of {', '.join(SCOPES)}")
    return make_key(form.get("name", ""), scope=scope, expires=expires, **_limits(form))


def _limits(form: dict[str, str]) -> dict[str, int]:
    names = ("rate_limit", "tokens_per_minute")
    return {name: min(whole_number(form, name), MAX_LIMIT) for name in names}


def _words(error: ZSEError) -> str:
    return " ".join(filter(None, (describe(error)[1].message, error.hint)))


def _part(request: Request, **facts: Any) -> Response:
    return render(request, "parts/keys.html", **{**_facts(request), **facts})


def _facts(request: Request) -> dict[str, Any]:
    access = state_of(request).access
    file = access.keyring.key_file
    own = {key.name for key in file.read().keys} if file is not None else set()
    return {
        "keys": [
            {
                **{name: getattr(key, name) for name in ("name", "key_id", "scope", "enabled")},
                **{name: getattr(key, name) for name in ("rate_limit", "tokens_per_minute")},
                "state": key.state(time.time()),
                "is_own": key.key_id == caller_of(request.scope).key_id,
                "is_changeable": key.name in own,
            }
            for key in access.keyring.known
        ],
        "is_enabled": access.keyring.is_enabled,
        "asks_for_key": access.asks_for_key,
        "problem": "",
        "made": None,
    }
