"""Who asks: one frozen record for each request, made before any route is chosen.

It decides what the request may reach, how urgent it may call itself and whose prefixes it shares.
Where no key exists everybody is the same caller, who may do everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

Scope = Literal["inference", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = ("inference", "metrics", "admin")
MAX_PRIORITY = 100
"""The protocol takes priorities from minus this to this."""


@record
class Caller:
    """Who sent a request."""

    key_id: str = ""
    """Public name of the key, lower-case hexadecimal; empty where no key was asked for."""
    name: str = ""
    """What the key is called by people."""
    scope: Scope = "admin"
    """Admin may do everything, each other scope what it is called."""
    priority: int = 0
    """Of a request that asks for none."""
    max_priority: int = MAX_PRIORITY
    """The highest that a request may ask for."""
    weight: int = 1
    """Share of the engine beside other callers' where all want it."""
    requests_per_minute: int = 0
    """Most in any minute; 0 as many as come."""
    tokens_per_minute: int = 0
    """Likewise, prompts and answers together."""
    limits_epoch: int = 0
    """Grows when what was used is forgotten."""

    @property
    def tenant(self) -> str:
        """Whose work it is: callers with the same tenant share their room with each other."""
        return self.key_id

    @property
    def is_limited(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute)

    def may(self, scope: Scope) -> bool:
        return self.scope in (scope, "admin")

    def priority_of(self, asked: int | None) -> int:
        """Return how urgent a request is that calls itself so urgent."""
        return self.priority if asked is None else min(asked, self.max_priority)

    def salt_of(self, asked: str | None) -> str:
        """Return the salt of a request's prefixes, which two callers never have in common.

        Who could share them would see by the time of an answer what others have asked.
        """
        salt = asked or ""
        return f"{self.key_id}:{salt}" if salt or self.key_id else ""


ANYBODY = Caller()
"""The caller of every request on this machine where no key exists."""
STRANGER = Caller(scope="inference")
"""The caller of a request that no key was asked for, though it may come from anywhere."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return who sent the request of an ASGI scope."""
    caller: Caller = scope["state"]["caller"]
    return caller
