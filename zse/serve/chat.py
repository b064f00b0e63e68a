"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from zse.serve.chat_answer import AnswerOptions, chat_frames, collect_chat
from zse.serve.conversation import check_chat, offers_tools, prompt_token_ids, without_effect
from zse.serve.generation import Generation, WorkOrder
from zse.serve.protocol import ChatRequest, read_request
from zse.serve.requests import answer_head, ignored_header, read_body, state_of, whole_answer
from zse.serve.sampling import build_params, check_extras, resolve_max_tokens
from zse.serve.streaming import ChunkWriter, EventStream

if TYPE_CHECKING:
    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.state import LoadedModel


async def create_chat_completion(request: Request) -> ASGIApp:
    state_of(request).require_model()
    return await answer_chat(request, await read_body(request))


async def answer_chat(request: Request, mapping: dict[str, Any]) -> ASGIApp:
    """Answer a parsed body."""
    state = state_of(request)
    body, ignored = read_request(mapping, ChatRequest)
    model = state.require_model(body.model)
    check_chat(body)
    # Rendering and encoding a long conversation takes milliseconds that other streams would feel.
    order = await asyncio.to_thread(_order, body, model, request.state)
    generation = Generation(state, model, order)
    options = AnswerOptions(
        has_logprobs=bool(body.logprobs),
        has_tools=offers_tools(body),
        allows_parallel_calls=body.parallel_tool_calls is not False,
    )
    headers = ignored_header([*ignored, *without_effect(body)])
    if body.stream:
        head = answer_head("chat.completion.chunk", "chatcmpl", model)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        frames = chat_frames(generation, ChunkWriter(head, include_usage=usage), options)
        return EventStream(frames, terminate=state.terminate, headers=headers)
    head = answer_head("chat.completion", "chatcmpl", model)
    return await whole_answer(request, collect_chat(generation, head, options), headers)


def _order(body: ChatRequest, model: LoadedModel, call: State) -> WorkOrder:
    prompt = prompt_token_ids(body, model)
    has_new_name = body.max_completion_tokens is not None
    max_tokens = resolve_max_tokens(
        body.max_completion_tokens if has_new_name else body.max_tokens,
        num_prompt_tokens=len(prompt),
        max_context=model.max_context,
        param="max_completion_tokens" if has_new_name else "max_tokens",
        prompt_param="messages",
    )
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = build_params(body, model, max_tokens=max_tokens, logprobs=logprobs)
    model.engine.check(prompt, params)
    priority, salt = check_extras(body)
    return WorkOrder(
        request_id=call.request_id,
        arrival=call.arrival,
        prompts=(prompt,),
        params=params,
        priority=priority,
        cache_salt=salt,
    )
