"""Nobody locks themselves out: a change of keys after which no admin could come in is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.access.caller import Caller
    from zse.serve.access.keys import ApiKey, KeyTable
    from zse.serve.access.policy import Access


def unless_locked_out(
    access: Access, caller: Caller, edit: Callable[[KeyTable], KeyTable]
) -> Callable[[KeyTable], KeyTable]:
    """Return an edit of the table of keys that refuses what would lock its caller out.

    Raises:
        RefusedError: When it is called: no admin's key would let in, or not the caller's own.
    """

    def checked(table: KeyTable) -> KeyTable:
        after = edit(table)
        there = {key.key_id for key in table.keys}
        fixed = [key for key in access.keyring.known if key.key_id not in there]
        keys = [*fixed, *after.keys]
        if access.would_ask(keys, is_enabled=after.enabled or bool(fixed)):
            _refuse(caller, [key for key in keys if _administers(key)])
        return after

    return checked


def _refuse(caller: Caller, admins: list[ApiKey]) -> None:
    if not admins:
        raise RefusedError(
            "no key would be left that administers, and keys would be asked for",
            hint="Make an admin's key first.",
        )
    if caller.key_id and all(key.key_id != caller.key_id for key in admins):
        raise RefusedError(
            f"this would lock you out: you are logged in with {caller.name!r}",
            hint="Log in with another admin's key first.",
        )


def _administers(key: ApiKey) -> bool:
    return key.scope == "admin" and key.state(time.time()) == "active"
