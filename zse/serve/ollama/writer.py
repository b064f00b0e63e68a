"""Answers in Ollama's form: one object, or one for each piece, a line each."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from zse.serve.answer_parts import object_of
from zse.serve.openai.logprobs import chat_logprobs
from zse.serve.turn import (
    Call,
    CallArguments,
    CallOpened,
    ChoiceEnded,
    ReasoningPart,
    TextPart,
    whole_answers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from zse.engine.output import TokenLogprob
    from zse.serve.http.streaming import FrameSink
    from zse.serve.turn import EndReason, Event, Turn

_NANOSECONDS = 1_000_000_000
_MORE = b',"done":false}\n'
_encode = msgspec.json.Encoder().encode


class Writer:
    """Writes one answer.

    Args:
        model: As the request calls it.
        is_chat: Whether it is a message, as /api/chat has it, or a response.
        has_logprobs: Whether log-probabilities were asked for.
        arrival: When the request came, on ``time.perf_counter``.
    """

    def __init__(self, model: str, *, is_chat: bool, has_logprobs: bool, arrival: float) -> None:
        self._head = {"model": model, "created_at": timestamp(time.time())}
        self._is_chat = is_chat
        self._has_logprobs = has_logprobs
        self._arrival = arrival
        self._first_token = 0.0
        self._calls: list[Call] = []
        before = b',"message":{"role":"assistant","content":' if is_chat else b',"response":'
        self._before = _encode(self._head)[:-1] + before
        self._behind = (b"}" if is_chat else b"") + _MORE

    def nothing(self) -> dict[str, Any]:
        """Return the answer to nothing: the model is there."""
        return {**self._head, **self._said(""), "done": True, "done_reason": "load"}

    async def whole(self, turn: Turn) -> dict[str, Any]:
        """Return the answer in one piece, when it has ended.

        Raises:
            ZSEError: As ``Turn.events``.
        """
        (answer,) = await whole_answers(self._timed(turn))
        said = self._said(answer.text, answer.reasoning, answer.calls)
        logprobs = self._told(answer.logprobs)
        return {**self._head, **said, **logprobs, **self._ending(answer.reason, turn)}

    async def lines(self, turn: Turn, sink: FrameSink | None) -> AsyncGenerator[bytes, None]:
        """Yield the lines of the answer, or let them go to the sink.

        Raises:
            ZSEError: As ``Turn.events``.
        """
        reason: EndReason = "stop"
        turn.shorten(sink, self._lines_of, self._around)
        async with aclosing(self._timed(turn)) as events:
            async for event in events:
                for line in self._lines_of(event):
                    yield line
                if isinstance(event, ChoiceEnded):
                    reason = event.reason
        yield _encode({**self._head, **self._said(""), **self._ending(reason, turn)}) + b"\n"

    async def _timed(self, turn: Turn) -> AsyncGenerator[Event, None]:
        async with aclosing(turn.events()) as events:
            async for event in events:
                self._first_token = self._first_token or time.perf_counter()
                yield event

    def _lines_of(self, event: Event) -> Iterator[bytes]:
        """Yield what an event adds. Calls are told of as wholes, at the end."""
        if isinstance(event, TextPart):
            if self._has_logprobs:
                yield self._line(self._said(event.text), self._told(event.logprobs))
            else:
                yield self._before + _encode(event.text) + self._behind
        elif isinstance(event, ReasoningPart):
            yield self._line(self._said("", event.text))
        elif isinstance(event, CallOpened):
            self._calls.append(Call(event.id, event.name))
        elif isinstance(event, CallArguments):
            self._calls[-1].arguments += event.text
        elif self._calls:
            yield self._line(self._said("", calls=self._calls))

    def _around(self, _: int) -> tuple[bytes, bytes] | None:
        """Return what stands around a text, where that is all of a line."""
        return None if self._has_logprobs else (self._before, self._behind)

    def _line(self, said: dict[str, Any], more: dict[str, Any] | None = None) -> bytes:
        return _encode({**self._head, **said, **(more or {}), "done": False}) + b"\n"

    def _said(self, text: str, thought: str = "", calls: Sequence[Call] = ()) -> dict[str, Any]:
        thinking = {"thinking": thought} if thought else {}
        if not self._is_chat:
            return {"response": text, **thinking}
        message: dict[str, Any] = {"role": "assistant", "content": text, **thinking}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return {"message": message}

    def _told(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"logprobs": chat_logprobs(entries)["content"]} if self._has_logprobs else {}

    def _ending(self, reason: EndReason, turn: Turn) -> dict[str, Any]:
        """Return why an answer ended, and what it took, in nanoseconds."""
        now, usage = time.perf_counter(), turn.usage()
        first_token = self._first_token or now
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": _nanoseconds(now - self._arrival),
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": _nanoseconds(first_token - self._arrival),
            "eval_count": usage["completion_tokens"],
            "eval_duration": _nanoseconds(now - first_token),
        }


def timestamp(seconds: float) -> str:
    """Return a time of the Unix epoch in Ollama's form."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": object_of(call.arguments)}}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
