"""How far the load of one model is: its phase, in words, and the ledger of what is behind it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.serve.ledger import Ledger

_WORDS = {
    "fetch": "fetching the model",
    "convert": "converting the checkpoint",
    "imports": "importing the engine",
    "model-file": "opening the model",
    "weights": "loading weights",
    "engine": "starting the engine",
}
"""What a phase of a load, or a stage of its work, is called."""
_OPENING = frozenset({"starting", "imports", "model-file", "weights"})
"""Phases beside which the model is opened: fetched, converted, sent on its way."""


class LoadProgress:
    """Written by the thread that loads, read by handlers.

    Args:
        ledger: Takes the times of the phases, and is told how many bytes have come.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.phase = "starting"
        """``ready`` or ``failed`` in the end."""

    @property
    def is_over(self) -> bool:
        return self.phase in ("ready", "failed")

    @property
    def stage(self) -> str:
        """What is being done, in words, and how much of it where that is known."""
        if self.phase in _OPENING and (work := self.ledger.work()) is not None:
            return f"{_WORDS.get(work.stage, work.stage)} ({work.share:.0%})"
        return _WORDS.get(self.phase, self.phase)

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Be in a phase, and write down what it took."""
        self.phase = phase
        with self.ledger.phase(phase):
            yield
