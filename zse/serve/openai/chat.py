"""POST /v1/chat/completions: conversations, tool calls, logprobs; answers whole or as chunks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.serve.generation import Generation
from zse.serve.http.requests import answer, answer_head, new_id, read_body, state_of
from zse.serve.http.streaming import DONE
from zse.serve.openai.conversation import check_chat, offers_tools, prompt_token_ids, without_effect
from zse.serve.openai.logprobs import chat_logprobs
from zse.serve.openai.protocol import ChatRequest, read_request
from zse.serve.openai.sampling import work_order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.engine.output import Delta
    from zse.serve.generation import WholeChoice, WorkOrder
    from zse.serve.http.streaming import ChunkWriter
    from zse.serve.state import LoadedModel
    from zse.text.tools import ToolCall, ToolReader


async def create_chat_completion(request: Request) -> ASGIApp:
    return await answer_chat(request, await read_body(request))


async def answer_chat(request: Request, mapping: dict[str, Any]) -> ASGIApp:
    state = state_of(request)
    body, ignored = read_request(mapping, ChatRequest)
    model = state.require_model(body.model)
    check_chat(body)
    # Rendering and encoding a long conversation takes milliseconds that other streams would feel.
    order = await asyncio.to_thread(_order, body, model, request.state)
    generation = Generation(state, model, order)
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    return await answer(
        request,
        body,
        answer_head(kind, "chatcmpl", model),
        ignored=[*ignored, *without_effect(body)],
        frames=partial(_frames, body, generation),
        collect=partial(_collect, body, generation),
    )


def _order(body: ChatRequest, model: LoadedModel, call: State) -> WorkOrder:
    has_new_name = body.max_completion_tokens is not None
    return work_order(
        body,
        model,
        call,
        [prompt_token_ids(body, model)],
        max_tokens=body.max_completion_tokens if has_new_name else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        param="max_completion_tokens" if has_new_name else "max_tokens",
        prompt_param="messages",
    )


async def _collect(body: ChatRequest, generation: Generation) -> dict[str, Any]:
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
    logprobs = chat_logprobs(choice.logprobs) if body.logprobs else None
    end = {"logprobs": logprobs, "finish_reason": finish_reason}
    return {"index": index, "message": message, **end}


def _reason(reason: str, *, has_calls: bool) -> str:
    # An answer that was cut says so, whatever it had begun.
    return "tool_calls" if has_calls and reason == "stop" else reason


async def _frames(
    body: ChatRequest, generation: Generation, writer: ChunkWriter
) -> AsyncGenerator[bytes, None]:
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
        self._reader: ToolReader | None = None
        if offers_tools(body):
            from zse.text.tools import ToolReader

            self._reader = ToolReader()
        self._held_logprobs: list[Any] = []
        self._num_calls = 0

    def opening(self) -> bytes:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def frames(self, delta: Delta) -> Iterator[bytes]:
        self._held_logprobs.extend(delta.logprobs or ())
        if self._reader is None:
            yield from self._text(delta.text)
        else:
            pieces = self._reader.push(delta.text)
            pieces += self._reader.finish() if delta.finish_reason is not None else ()
            for piece in pieces:
                yield from self._text(piece) if isinstance(piece, str) else self._call(piece)
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

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        if self._num_calls and self._body.parallel_tool_calls is False:
            return
        # The name, the id and the type come once: clients concatenate what they get.
        opening = {"id": new_id("call"), "type": "function"}
        named = {**opening, "function": {"name": call.name, "arguments": ""}}
        for part in (named, {"function": {"arguments": call.arguments_json}}):
            yield self._chunk({"tool_calls": [{"index": self._num_calls, **part}]})
        self._num_calls += 1

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        with_logprobs: bool = False,
    ) -> bytes:
        logprobs = None
        if with_logprobs:
            logprobs = chat_logprobs(self._held_logprobs)
            self._held_logprobs = []
        end = {"logprobs": logprobs, "finish_reason": finish_reason}
        return self._writer.choice({"index": self._index, "delta": delta, **end})
