"""What an answer's text is taken apart into while it grows: words, thoughts, calls."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias


class Said(NamedTuple):
    """Text for whoever asked."""

    text: str


class Thought(NamedTuple):
    """Text of the model's reasoning."""

    text: str


class CallOpening(NamedTuple):
    """A call of a tool begins; its arguments follow."""

    name: str


class Arguments(NamedTuple):
    """More of the JSON text of the arguments of the call that was opened last."""

    text: str


Piece: TypeAlias = Said | Thought | CallOpening | Arguments


class AnswerReader(Protocol):
    """Takes one answer apart. What it returns does not depend on where the text was cut."""

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        ...

    def push(self, text: str) -> list[Piece]:
        """Return what is certain after ``text``; what may still become something else is held."""
        ...

    def finish(self) -> list[Piece]:
        """Return what was held: the answer has ended. Nothing is lost but markers."""
        ...
