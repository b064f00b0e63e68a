"""The content blocks of an answer, while a turn's events arrive.

An answer in one piece and a stream are written from the same blocks. Blocks do not overlap: each
one is opened, grows and is closed before the next is opened.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from zse.serve.turn import CallArguments, CallOpened, ReasoningPart, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.serve.turn import Event

Kind = Literal["text", "thinking", "tool_use"]


@dataclass
class Block:
    """One content block."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)
    """Text, thoughts or the JSON text of a call's input."""

    def opening(self) -> dict[str, Any]:
        """Return the block as it is when it begins."""
        if self.kind == "text":
            return {"type": "text", "text": ""}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "tool_use", "id": self.call_id, "name": self.name, "input": {}}

    def whole(self) -> dict[str, Any]:
        """Return the block as it is in the end."""
        text = "".join(self.texts)
        if self.kind == "text":
            return {"type": "text", "text": text}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": self.signature()}
        return {**self.opening(), "input": _object_of(text)}

    def signature(self) -> str:
        """Return what stands beside a thought.

        Clients drop thoughts without one; nobody here relies on it.
        """
        return hashlib.sha256("".join(self.texts).encode()).hexdigest()


class Step(NamedTuple):
    """What happened to a block."""

    kind: Literal["opened", "grown", "closed"]
    block: Block
    text: str = ""


class Blocks:
    """Takes the events of a choice.

    Args:
        shows_thinking: Whether thoughts become blocks; they are left out otherwise.
    """

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._blocks: list[Block] = []
        self._is_open = False
        self._held = ""
        """Space that becomes part of a text only if more follows: a block of space is none."""

    def push(self, event: Event) -> Iterator[Step]:
        """Yield what an event does to the blocks."""
        if type(event) is TextPart:
            yield from self._say(event.text)
        elif isinstance(event, ReasoningPart):
            if self._shows_thinking:
                yield from self._grow("thinking", event.text)
        elif isinstance(event, CallOpened):
            yield from self._open(Block(len(self._blocks), "tool_use", event.id, event.name))
        elif isinstance(event, CallArguments):
            yield from self._grow("tool_use", event.text)
        else:
            yield from self.close()

    def close(self) -> Iterator[Step]:
        """Close the block that is open, if one is."""
        self._held = ""
        if self._is_open:
            self._is_open = False
            yield Step("closed", self._blocks[-1])

    def content(self) -> list[dict[str, Any]]:
        """Return the whole blocks."""
        return [block.whole() for block in self._blocks]

    def _say(self, text: str) -> Iterator[Step]:
        if not self._has("text"):
            text = self._held + text
            self._held = "" if text.strip() else text
            if self._held:
                return
        yield from self._grow("text", text)

    def _grow(self, kind: Kind, text: str) -> Iterator[Step]:
        if not text:
            return
        if not self._has(kind):
            yield from self._open(Block(len(self._blocks), kind))
        block = self._blocks[-1]
        block.texts.append(text)
        yield Step("grown", block, text)

    def _open(self, block: Block) -> Iterator[Step]:
        yield from self.close()
        self._blocks.append(block)
        self._is_open = True
        yield Step("opened", block)

    def _has(self, kind: Kind) -> bool:
        return self._is_open and self._blocks[-1].kind == kind


def _object_of(text: str) -> dict[str, Any]:
    """Return the input of a call; one that was cut, or is no object, is empty."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
