"""Chat answers, whole or as chunks, from the deltas of a generation."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from zse.serve.conversation import offers_tools
from zse.serve.logprobs import chat_logprobs
from zse.serve.requests import new_id
from zse.serve.streaming import DONE, ChunkWriter
from zse.serve.toolcalls import CallPiece, ToolReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from zse.engine.output import Delta
    from zse.serve.generation import Generation, WholeChoice
    from zse.serve.protocol import ChatRequest


async def collect_chat(body: ChatRequest, generation: Generation) -> dict[str, Any]:
    """Return what follows the head of a whole answer."""
    choices = [_whole(i, choice, body) for i, choice in enumerate(await generation.whole())]
    return {"choices": choices, "usage": generation.usage()}


def _whole(index: int, choice: WholeChoice, body: ChatRequest) -> dict[str, Any]:
    content = choice.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    finish_reason = choice.finish_reason
    if offers_tools(body):
        from zse.text.tools import parse_tool_calls

        parsed = parse_tool_calls(content)
        calls = parsed.tool_calls
        if body.parallel_tool_calls is False:
            calls = calls[:1]
        if calls:
            message["content"] = parsed.content
            message["tool_calls"] = [
                {
                    "id": new_id("call"),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json},
                }
                for call in calls
            ]
            finish_reason = _reason(finish_reason, has_calls=True)
    logprobs = None
    if body.logprobs:
        logprobs = {"content": chat_logprobs(choice.logprobs), "refusal": None}
    end = {"logprobs": logprobs, "finish_reason": finish_reason}
    return {"index": index, "message": message, **end}


def _reason(reason: str, *, has_calls: bool) -> str:
    # An answer that was cut says so, whatever it had begun.
    return "tool_calls" if has_calls and reason == "stop" else reason


async def chat_frames(
    body: ChatRequest, generation: Generation, writer: ChunkWriter
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a streamed answer, the end marker included."""
    choices: dict[int, _StreamedChoice] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if index not in choices:
                choices[index] = _StreamedChoice(index, writer, body)
                yield choices[index].opening()
            for frame in choices[index].frames(delta):
                yield frame
    if writer.include_usage:
        yield writer.usage(generation.usage())
    yield DONE


class _StreamedChoice:
    """One choice of a stream."""

    def __init__(self, index: int, writer: ChunkWriter, body: ChatRequest) -> None:
        self._index = index
        self._writer = writer
        self._body = body
        self._reader = ToolReader() if offers_tools(body) else None
        self._held_logprobs: list[Any] = []
        self._num_calls = 0

    def opening(self) -> bytes:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def frames(self, delta: Delta) -> Iterator[bytes]:
        self._held_logprobs.extend(delta.logprobs or ())
        is_last = delta.finish_reason is not None
        if self._reader is None:
            yield from self._text(delta.text)
        else:
            pieces = self._reader.push(delta.text)
            for piece in [*pieces, *(self._reader.finish() if is_last else ())]:
                if isinstance(piece, CallPiece):
                    yield from self._call(piece)
                else:
                    yield from self._text(piece)
        if delta.finish_reason is not None:
            if self._held_logprobs:
                yield self._chunk({"content": ""}, with_logprobs=True)
            reason = _reason(delta.finish_reason, has_calls=self._num_calls > 0)
            yield self._chunk({}, finish_reason=reason)

    def _text(self, text: str) -> Iterator[bytes]:
        if not text:
            return
        if self._body.logprobs:
            yield self._chunk({"content": text}, with_logprobs=True)
        else:
            yield self._writer.chat_text(self._index, text)

    def _call(self, piece: CallPiece) -> Iterator[bytes]:
        if piece.index > 0 and self._body.parallel_tool_calls is False:
            return
        if piece.name is not None:
            self._num_calls += 1
            # The name, the id and the type come once: clients concatenate what they get.
            opening = {"id": new_id("call"), "type": "function"}
            function = {"name": piece.name, "arguments": ""}
            call = {"index": piece.index, **opening, "function": function}
            yield self._chunk({"tool_calls": [call]})
        if piece.arguments:
            call = {"index": piece.index, "function": {"arguments": piece.arguments}}
            yield self._chunk({"tool_calls": [call]})

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        with_logprobs: bool = False,
    ) -> bytes:
        logprobs = None
        if with_logprobs:
            logprobs = {"content": chat_logprobs(self._held_logprobs), "refusal": None}
            self._held_logprobs = []
        end = {"logprobs": logprobs, "finish_reason": finish_reason}
        return self._writer.choice({"index": self._index, "delta": delta, **end})
