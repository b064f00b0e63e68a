"""POST /v1/chat/completions: conversations, tool calls, logprobs; answers whole or as chunks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.records import record
from zse.serve.http.json_body import with_body
from zse.serve.http.lazy_handlers import imported
from zse.serve.http.requests import answer, answer_head, read_body
from zse.serve.http.streaming import DONE
from zse.serve.openai.chat_turn import open_turn
from zse.serve.openai.conversation import echo_of, without_effect
from zse.serve.openai.logprobs import chat_logprobs, prompt_logprobs
from zse.serve.openai.protocol import ChatRequest, read_request
from zse.serve.turn import CallArguments, CallOpened, ChoiceEnded, TextPart, ToolRan, Turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.http.streaming import ChunkWriter, FrameSink
    from zse.serve.openai.tool_turns import ToolTurns
    from zse.serve.state import LoadedModel
    from zse.serve.turn import Answer, EndReason, Event, ReasoningPart


async def create_chat_completion(request: Request) -> ASGIApp:
    return await answer_chat(request, await read_body(request))


async def answer_chat(request: Request, mapping: dict[str, Any]) -> ASGIApp:
    body, ignored = await with_body(request, read_request, mapping, ChatRequest)
    opened = await turns_for(request, mapping, body)
    model, turn = opened.model, opened.turn
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    return await answer(
        request,
        body,
        answer_head(kind, "chatcmpl", model),
        ignored=[*ignored, *without_effect(body, model)],
        frames=partial(_frames, body, opened),
        collect=partial(_collect, body, opened),
        usage=turn.usage,
    )


_cite = imported("zse.serve.documents.citing", "cite")
"""By name: documents are embedded, and what embeds knows of requests like these."""


@record
class Opened:
    """A conversation that is being answered."""

    model: LoadedModel
    turn: Turn | ToolTurns
    """Several where the server runs tools."""
    sources: list[dict[str, Any]] | None = None
    """Excerpts of documents that the model was given; None where none were asked for."""

    @property
    def told(self) -> dict[str, Any]:
        """Return what an answer tells of its documents."""
        return {} if self.sources is None else {"documents": self.sources}


async def turns_for(request: Request, mapping: dict[str, Any], body: ChatRequest) -> Opened:
    """Let a conversation in.

    Raises:
        ZSEError: As ``open_turn``, ``open_tool_turns`` and ``cite``.
    """
    sources = None
    if body.documents:
        cited = await _cite()(request, mapping, body)
        mapping, body, sources = cited.mapping, cited.body, cited.sources
    turn: Turn | ToolTurns
    if body.server_tools:
        from zse.serve.openai.tool_turns import open_tool_turns

        model, turn = await open_tool_turns(request, mapping, body)
    else:
        model, turn = await open_turn(request, mapping, body)
    return Opened(model=model, turn=turn, sources=sources)


async def _collect(body: ChatRequest, opened: Opened) -> dict[str, Any]:
    turn, model = opened.turn, opened.model
    choices = [_whole(i, choice, body, opened) for i, choice in enumerate(await turn.answers())]
    rest = {"choices": choices, "usage": turn.usage()}
    if turn.report is not None:  # a long prompt has many log-probabilities
        told = await asyncio.to_thread(prompt_logprobs, model.tokenizer, turn.report.tokens)
        rest["prompt_logprobs"] = told
    return rest


def _whole(index: int, choice: Answer, body: ChatRequest, opened: Opened) -> dict[str, Any]:
    text = echo_of(body) + choice.text
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    message |= opened.told
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    if choice.ran:
        message["server_tools"] = list(map(_ran, choice.ran))
    logprobs = chat_logprobs(choice.logprobs) if body.logprobs else None
    end = {"logprobs": logprobs, "finish_reason": _finish_reason(choice.reason, body)}
    return {"index": index, "message": message, **end}


async def _frames(
    body: ChatRequest, opened: Opened, writer: ChunkWriter, sink: FrameSink | None
) -> AsyncGenerator[bytes, None]:
    turn, streamed = opened.turn, _Streamed(body, writer, opened.told)
    turn.shorten(sink, streamed.frames, streamed.around)
    async with aclosing(turn.events()) as events:
        async for event in events:
            for frame in streamed.frames(event):
                yield frame
    if writer.include_usage:
        yield writer.usage(turn.usage())
    yield DONE


class _Streamed:
    """The choices of a stream."""

    def __init__(self, body: ChatRequest, writer: ChunkWriter, told: dict[str, Any]) -> None:
        self._body = body
        self._told = told
        self._writer = writer
        self._opened: set[int] = set()

    def frames(self, event: Event) -> list[bytes]:
        writer, body = self._writer, self._body
        frames = [] if event.index in self._opened else self._opening(event.index)
        if type(event) is TextPart and not body.logprobs:
            frames.append(writer.chat_text(event.index, event.text))
        elif isinstance(event, ChoiceEnded):
            reason = _finish_reason(event.reason, body)
            frames.append(_chunk(writer, event.index, {}, finish_reason=reason))
        else:
            frames.append(_frame(event, writer))
        return frames

    def around(self, index: int) -> tuple[bytes, bytes] | None:
        """Return what stands around the text of a choice that has begun, where that is all."""
        is_plain = index in self._opened and not self._body.logprobs
        return self._writer.around_chat(index) if is_plain else None

    def _opening(self, index: int) -> list[bytes]:
        """Return what a choice begins with: its role, and what is echoed."""
        self._opened.add(index)
        opening = {"role": "assistant", "content": "", "refusal": None, **self._told}
        frames = [_chunk(self._writer, index, opening)]
        if echo := echo_of(self._body):
            frames.append(self._writer.chat_text(index, echo))
        return frames


def _finish_reason(reason: EndReason, body: ChatRequest) -> EndReason:
    # Who named the tool knows that it is called: OpenAI tells of what the model chose itself.
    is_named = isinstance(body.tool_choice, dict) and body.tool_choice.get("type") == "function"
    return "stop" if reason == "tool_calls" and is_named else reason


def _ran(event: ToolRan) -> dict[str, Any]:
    """Return what clients are told of a tool that the server ran; OpenAI has no word for it."""
    return {
        "id": event.id,
        "name": event.name,
        "arguments": event.arguments,
        "output": event.output,
        "is_error": event.is_error,
        "seconds": round(event.seconds, 3),
    }


def _frame(
    event: TextPart | ReasoningPart | CallOpened | CallArguments | ToolRan, writer: ChunkWriter
) -> bytes:
    if isinstance(event, TextPart):
        logprobs = chat_logprobs(event.logprobs)
        return _chunk(writer, event.index, {"content": event.text}, logprobs=logprobs)
    if isinstance(event, CallOpened):
        # The name, the id and the type come once: clients concatenate what they get.
        opening = {"id": event.id, "type": "function"}
        call = {**opening, "function": {"name": event.name, "arguments": ""}}
        return _call_chunk(writer, event, call)
    if isinstance(event, CallArguments):
        return _call_chunk(writer, event, {"function": {"arguments": event.text}})
    if isinstance(event, ToolRan):
        return _chunk(writer, event.index, {"server_tools": [_ran(event)]})
    return _chunk(writer, event.index, {"reasoning_content": event.text})


def _call_chunk(
    writer: ChunkWriter, event: CallOpened | CallArguments, call: dict[str, Any]
) -> bytes:
    return _chunk(writer, event.index, {"tool_calls": [{"index": event.call, **call}]})


def _chunk(
    writer: ChunkWriter,
    index: int,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish_reason: EndReason | None = None,
) -> bytes:
    end = {"logprobs": logprobs, "finish_reason": finish_reason}
    return writer.choice({"index": index, "delta": delta, **end})
