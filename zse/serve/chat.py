"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.serve.chat_answer import chat_frames, collect_chat
from zse.serve.conversation import check_chat, prompt_token_ids, without_effect
from zse.serve.generation import Generation
from zse.serve.protocol import ChatRequest, read_request
from zse.serve.requests import answer, answer_head, read_body, state_of
from zse.serve.sampling import work_order

if TYPE_CHECKING:
    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.generation import WorkOrder
    from zse.serve.state import LoadedModel


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
        frames=partial(chat_frames, body, generation),
        collect=partial(collect_chat, body, generation),
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
