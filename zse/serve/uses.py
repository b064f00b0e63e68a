"""How many requests need a model to stay where it is: counted once a request, in the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _nobody_waits() -> None:
    """Stand in where nobody waits for a model to be free."""


class Uses:
    """The uses of one model, and of its adapters."""

    __slots__ = ("count", "on_free")

    def __init__(self) -> None:
        self.count = 0
        self.on_free: Callable[[], None] = _nobody_waits
        """Called when the last use ends."""

    def begin(self) -> None:
        """Keep the model until ``end``."""
        self.count += 1

    def end(self) -> None:
        """Give it up, once for each ``begin``."""
        self.count -= 1
        if not self.count:
            self.on_free()
