"""Answers in Anthropic's form: whole messages, and the events of a stream."""

from __future__ import annotations

import hashlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from zse.records import record
from zse.serve.answer_parts import Parts, object_of
from zse.serve.http.dialects import ANTHROPIC
from zse.serve.turn import ChoiceEnded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from zse.serve.answer_parts import Part, Step
    from zse.serve.http.streaming import FrameSink
    from zse.serve.turn import Event, Turn

_DELTAS = {
    "text": b'"text_delta","text":',
    "reasoning": b'"thinking_delta","thinking":',
    "call": b'"input_json_delta","partial_json":',
}
"""What the deltas of a kind of part begin with."""
_encode = msgspec.json.Encoder().encode


@record
class Message:
    """What is known of an answer before it is made."""

    id: str
    model: str
    shows_thinking: bool
    is_short_of_context: bool
    """Whether the context ends before ``max_tokens`` are made."""

    def head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def ending(self, event: ChoiceEnded) -> dict[str, Any]:
        """Return why the answer ended."""
        if event.reason == "length":
            reason = "model_context_window_exceeded" if self.is_short_of_context else "max_tokens"
        elif event.reason == "tool_calls":
            reason = "tool_use"
        else:
            reason = "end_turn" if event.stop is None else "stop_sequence"
        stop = event.stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop}


async def whole(message: Message, turn: Turn) -> dict[str, Any]:
    """Return the message when it has ended.

    Raises:
        ZSEError: As ``Turn.events``.
    """
    parts = Parts(shows_reasoning=message.shows_thinking)
    ending: dict[str, Any] = {}
    async with aclosing(turn.events()) as events:
        async for event in events:
            for _ in parts.push(event):
                pass
            if isinstance(event, ChoiceEnded):
                ending = message.ending(event)
    content = [_whole_block(part) for part in parts.parts]
    return {**message.head(), "content": content, **ending, "usage": _usage(turn)}


async def frames(
    message: Message, turn: Turn, sink: FrameSink | None
) -> AsyncGenerator[bytes, None]:
    """Yield the events of the message, or let them go to the sink.

    Raises:
        ZSEError: As ``Turn.events``.
    """
    parts = Parts(shows_reasoning=message.shows_thinking)
    ending: dict[str, Any] = {}
    has_begun = False

    def grown(event: Event) -> Iterator[bytes]:
        for step in parts.push(event):
            yield from _frames_of(step)

    def around(_: int) -> tuple[bytes, bytes] | None:
        index = parts.open_text()
        return None if index is None else _around(index, _DELTAS["text"])

    turn.shorten(sink, grown, around)
    async with aclosing(turn.events()) as events:
        async for event in events:
            if not has_begun:
                has_begun = True
                yield _start(message, turn)
                yield ANTHROPIC.alive
            for frame in grown(event):
                yield frame
            if isinstance(event, ChoiceEnded):
                ending = message.ending(event)
    yield _frame("message_delta", delta=ending, usage=_usage(turn))
    yield _frame("message_stop")


def _usage(turn: Turn) -> dict[str, int]:
    """Return the counts; what was cached is no part of ``input_tokens``."""
    usage = turn.usage()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def _start(message: Message, turn: Turn) -> bytes:
    nothing_yet: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    start = {**message.head(), **nothing_yet, "usage": _usage(turn)}
    return _frame("message_start", message=start)


def _frames_of(step: Step) -> Iterator[bytes]:
    part = step.part
    if step.kind == "grown":
        yield _delta(part, _DELTAS[part.kind], step.text)
    elif step.kind == "opened":
        yield _frame("content_block_start", index=part.index, content_block=_opening(part))
    else:
        if part.kind == "reasoning":
            yield _delta(part, b'"signature_delta","signature":', _signature(part))
        yield _frame("content_block_stop", index=part.index)


def _opening(part: Part) -> dict[str, Any]:
    """Return a block as it is when it begins."""
    if part.kind == "text":
        return {"type": "text", "text": ""}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}


def _whole_block(part: Part) -> dict[str, Any]:
    """Return a block as it is in the end."""
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": _signature(part)}
    return {**_opening(part), "input": object_of(part.text)}


def _signature(part: Part) -> str:
    """Return what stands beside a thought: clients drop those without one."""
    return hashlib.sha256(part.text.encode()).hexdigest()


def _delta(part: Part, beginning: bytes, text: str) -> bytes:
    # One for each token: only its text is encoded.
    before, behind = _around(part.index, beginning)
    return before + _encode(text) + behind


def _around(index: int, beginning: bytes) -> tuple[bytes, bytes]:
    """Return what stands before and behind the JSON text of a delta."""
    before = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
        b'"delta":{"type":%s' % (index, beginning)
    )
    return before, b"}}\n\n"


def _frame(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
