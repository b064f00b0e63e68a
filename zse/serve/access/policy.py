"""Who may come in: every request is refused unless a rule lets it pass.

A server on loopback where no key exists is for whoever uses the machine. Any other asks for a key,
unless it was told that a gate in front does (``--public``); what administers it needs an admin key
even then.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.records import record
from zse.serve.access.caller import ANYBODY, STRANGER
from zse.serve.access.rules import MEASURES, scope_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.serve.access.caller import Caller, Scope
    from zse.serve.access.keyring import Keyring
    from zse.serve.access.keys import ApiKey
    from zse.serve.access.limits import Limits
    from zse.serve.access.sessions import Session, Sessions

_HOW = "Send the header 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."


class InvalidKeyError(ZSEError):
    """No key was shown where one is asked for, or one that lets nobody in."""

    http_status = 401
    error_code = "invalid_api_key"


class ScopeError(ZSEError):
    """The key is good, but not for this."""

    http_status = 403
    error_code = "insufficient_permissions"


@record
class Decision:
    """What was found out about a request."""

    caller: Caller
    """Whose it is as far as that is known, also when it is refused."""
    refusal: ZSEError | None = None


class Access:
    """Decides about requests.

    Args:
        keyring: The keys that exist.
        is_local: The listener is reachable from this machine only.
        is_public: A gate in front of the listener guards it.
        shows_measures: Everybody may see how busy the server is.
        limits_storage: Where limits are counted; empty in this process.
        now: Unix seconds.
    """

    def __init__(
        self,
        keyring: Keyring,
        *,
        is_local: bool,
        is_public: bool = False,
        shows_measures: bool = False,
        limits_storage: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.keyring = keyring
        self._is_guarded = is_local or is_public
        self._nobody = ANYBODY if is_local else STRANGER
        self._shows_measures = is_local or shows_measures
        self._now = now
        self._limits_storage = limits_storage
        self._limits: Limits | None = None
        self.sessions: Sessions | None = None
        """Of browsers; None until one logs in."""

    @property
    def asks_for_key(self) -> bool:
        return self.would_ask(self.keyring.known, is_enabled=self.keyring.is_enabled)

    def would_ask(self, keys: Sequence[ApiKey], *, is_enabled: bool) -> bool:
        """Whether a key is asked for where these exist."""
        return not self._is_guarded or (bool(keys) and is_enabled)

    async def limits(self) -> Limits:
        """Return what counts, imported when the first limited key is shown."""
        if self._limits is not None:
            return self._limits
        made = await asyncio.to_thread(_make_limits, self._limits_storage, self._now)
        return self._keep(made)

    def _keep(self, made: Limits) -> Limits:
        """Keep what counts from now on: what was made first."""
        if self._limits is None:
            self._limits = made
        return self._limits

    async def close(self) -> None:
        if self._limits is not None:
            await self._limits.close()

    def decide(self, path: str, shown: Sequence[bytes], session: Session | None = None) -> Decision:
        """Decide about a request for a path that shows some secrets; the first good one counts.

        ``session`` is that of a browser, which shows none.
        """
        needed = scope_needed(path)
        if needed is None or (self._shows_measures and path in MEASURES):
            return Decision(caller=self._nobody)
        refusals: list[Decision] = []
        for secret in shown if self.keyring.known else ():
            decision = self._of_secret(secret, needed)
            if decision.refusal is None:
                return decision
            refusals.append(decision)
        if session is not None:
            key = next((one for one in self.keyring.known if one.key_id == session.key_id), None)
            if key is not None:
                return self._of_key(key, needed)
        if not self.asks_for_key and (path in MEASURES or self._nobody.may(needed)):
            return Decision(caller=self._nobody)
        return refusals[0] if refusals else self._unknown(needed, is_shown=bool(shown))

    def check_again(self, caller: Caller) -> None:
        """Hold a caller who came in long ago against the keys that there are now.

        Raises:
            InvalidKeyError: The key was removed or disabled, or has expired.
        """
        if not caller.key_id:
            return
        known = (key for key in self.keyring.known if key.key_id == caller.key_id)
        key = next(known, None)
        if key is None or key.state(self._now()) != "active":
            raise InvalidKeyError(f"The API key '{caller.name}' lets in no longer.")

    def _of_secret(self, secret: bytes, needed: Scope) -> Decision:
        key = self.keyring.find(secret)
        return self._unknown(needed, is_shown=True) if key is None else self._of_key(key, needed)

    def _of_key(self, key: ApiKey, needed: Scope) -> Decision:
        caller, refusal = key.to_caller(), None
        if not key.enabled:
            refusal = InvalidKeyError(f"The API key '{key.name}' is disabled.")
        elif key.is_expired(self._now()):
            refusal = InvalidKeyError(f"The API key '{key.name}' has expired.")
        elif not caller.may(needed):
            return Decision(caller=caller, refusal=_out_of_scope(key.name, key.scope, needed))
        return Decision(caller=caller, refusal=refusal)

    def _unknown(self, needed: Scope, *, is_shown: bool) -> Decision:
        if is_shown:
            refusal = InvalidKeyError("Incorrect API key provided.")
        elif needed == "admin":
            refusal = InvalidKeyError(f"An admin API key is needed here. {_HOW}")
        else:
            refusal = InvalidKeyError(f"No API key was provided. {_HOW}")
        return Decision(caller=STRANGER, refusal=refusal)


def _make_limits(storage: str, now: Callable[[], float]) -> Limits:
    from zse.serve.access.limits import Limits

    return Limits(storage, now=now)


def _out_of_scope(name: str, scope: Scope, needed: Scope) -> ScopeError:
    article = "an" if needed[0] in "ai" else "a"
    return ScopeError(
        f"The API key '{name}' is for {scope}; this needs {article} {needed} key. "
        "Generation is at /v1/chat/completions."
    )
