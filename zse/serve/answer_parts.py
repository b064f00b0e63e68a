"""The parts of one answer, while a turn's events arrive: thoughts, texts, calls.

Protocols that say an answer part by part write it from these, whole or streamed. Parts do not
overlap: each one is opened, grows and is closed before the next is opened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from zse.serve.turn import CallArguments, CallOpened, ChoiceEnded, ReasoningPart, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.engine.output import TokenLogprob
    from zse.serve.turn import Event

Kind = Literal["text", "reasoning", "call"]


@dataclass
class Part:
    """One part."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    """Of the tool, where it is a call."""
    texts: list[str] = field(default_factory=list)
    """Text, thoughts or the JSON text of a call's arguments."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_cut: bool = False
    """Whether the answer ended at a limit of tokens in it."""

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Step(NamedTuple):
    """What happened to a part."""

    kind: Literal["opened", "grown", "closed"]
    part: Part
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()


class Parts:
    """Takes the events of a choice.

    Args:
        shows_reasoning: Whether thoughts become parts; they are left out otherwise.
    """

    def __init__(self, *, shows_reasoning: bool) -> None:
        self.parts: list[Part] = []
        self._shows_reasoning = shows_reasoning
        self._is_open = False
        self._held = ""
        """Space that becomes part of a text only if more follows: a text of space is none."""
        self._held_logprobs: list[TokenLogprob] = []

    def open_text(self) -> int | None:
        """Return which part is a text that is open; None where none is."""
        return len(self.parts) - 1 if self._has("text") else None

    def push(self, event: Event) -> Iterator[Step]:
        """Yield what an event does to the parts."""
        if isinstance(event, TextPart):
            yield from self._say(event)
        elif isinstance(event, ReasoningPart):
            if self._shows_reasoning:
                yield from self._grow("reasoning", event.text)
        elif isinstance(event, CallOpened):
            yield from self._open(Part(len(self.parts), "call", event.id, event.name))
        elif isinstance(event, CallArguments):
            yield from self._grow("call", event.text)
        elif isinstance(event, ChoiceEnded):
            if self._is_open:
                self.parts[-1].is_cut = event.reason == "length"
            yield from self._close()

    def _say(self, event: TextPart) -> Iterator[Step]:
        text, logprobs = event.text, event.logprobs
        if not self._has("text"):
            text = self._held + text
            self._held_logprobs.extend(logprobs)
            self._held = "" if text.strip() else text
            if not text.strip():
                return
            logprobs, self._held_logprobs = self._held_logprobs, []
        yield from self._grow("text", text, logprobs)

    def _grow(self, kind: Kind, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[Step]:
        if not text and not logprobs:
            return
        if not self._has(kind):
            yield from self._open(Part(len(self.parts), kind))
        part = self.parts[-1]
        part.texts.append(text)
        part.logprobs.extend(logprobs)
        yield Step("grown", part, text, logprobs)

    def _open(self, part: Part) -> Iterator[Step]:
        yield from self._close()
        self._held, self._held_logprobs = "", []
        self.parts.append(part)
        self._is_open = True
        yield Step("opened", part)

    def _close(self) -> Iterator[Step]:
        if self._is_open:
            self._is_open = False
            yield Step("closed", self.parts[-1])

    def _has(self, kind: Kind) -> bool:
        return self._is_open and self.parts[-1].kind == kind


def object_of(text: str) -> dict[str, Any]:
    """Return the input of a call; one that was cut, or is no object, is empty."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
