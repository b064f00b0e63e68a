"""Where time goes while something starts: whoever starts it says what it is doing.

``with phase("context"): ...`` around a step; the server's cold-start ledger listens.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Phases(Protocol):
    """Makes a context that lasts as long as the named phase."""

    def __call__(self, name: str, /) -> AbstractContextManager[None]:
        """Begin a phase when entered, end it when left."""


def no_phases(name: str, /) -> AbstractContextManager[None]:  # noqa: ARG001
    """Listen to nothing."""
    return nullcontext()
