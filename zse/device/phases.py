"""Where time goes while something starts: whoever starts it says what it is doing.

``with phase("context"): ...`` around a step; the server's cold-start ledger listens.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

Phases: TypeAlias = "Callable[[str], AbstractContextManager[None]]"
"""Makes a context that lasts as long as the named phase."""


def no_phases(name: str, /) -> AbstractContextManager[None]:  # noqa: ARG001
    """Listen to nothing."""
    return nullcontext()
