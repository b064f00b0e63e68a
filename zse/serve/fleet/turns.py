"""Whose turn it is: who is brought next, and who leaves for it. Numbers only, no clock, no work.

Next is the model whose oldest request came first. An idle model leaves at once, the least recently
asked first. One that is in use goes on for a turn, from when it came or from when the other was
first asked for, whichever is later; then it takes no further requests and leaves behind its last
answer. So a model is there for a turn whenever it was brought, and nobody waits for ever: the
oldest request only ever waits for turns and answers that have begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable


@record
class Resident:
    """A model that may leave."""

    name: str
    last_asked: float
    since: float
    """When it came."""
    is_free: bool
    """Whether no request needs it."""


@record
class Leave:
    """Who leaves, and when."""

    name: str
    at: float
    """When it is to take no further requests."""


def who_leaves(
    residents: Iterable[Resident], *, asked_since: float, turn_seconds: float
) -> Leave | None:
    """Return which model makes room for one that was first asked for at ``asked_since``.

    None where none may leave. An idle one leaves at once: ``at`` is in the past.
    """
    found = list(residents)
    free = [one for one in found if one.is_free]
    chosen = min(free or found, key=lambda one: one.last_asked, default=None)
    if chosen is None:
        return None
    if chosen.is_free:
        return Leave(name=chosen.name, at=float("-inf"))
    return Leave(name=chosen.name, at=max(chosen.since, asked_since) + turn_seconds)
