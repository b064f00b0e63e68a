"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from zse.errors import ContextLengthError
from zse.serve.anthropic.conversation import conversation_of, shows_thinking, without_effect
from zse.serve.anthropic.protocol import read_count, read_messages
from zse.serve.anthropic.writer import Message, frames, whole
from zse.serve.asking import model_for, writer_for
from zse.serve.conversation import plan_turn
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import (
    event_stream,
    ignored_header,
    json_response,
    read_body,
    sink_of,
    state_of,
)
from zse.serve.http.streaming import race
from zse.serve.openai.protocol import GenerationFields
from zse.serve.openai.sampling import work_order
from zse.serve.preparing import admit, in_turn, num_characters
from zse.serve.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.anthropic.protocol import CountTokensRequest, MessagesRequest
    from zse.serve.conversation import TurnPlan
    from zse.serve.generation import WorkOrder
    from zse.serve.state import LoadedModel


async def create_message(request: Request) -> ASGIApp:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_messages, mapping)
    state = state_of(request)
    model = await writer_for(request, body.model)
    size = await with_body(request, num_characters, mapping)
    admit(request, num_choices=1, size=size)
    plan, order = await in_turn(request, partial(_plan, body, model, request.state), size=size)
    turn = Turn(state, model, order, plan)
    message = Message(
        id=f"msg_{uuid.uuid4().hex}",
        model=model.name,
        shows_thinking=shows_thinking(body),
        is_short_of_context=order.params.max_tokens != body.max_tokens,
    )
    headers = _headers(request, [*ignored, *without_effect(body, model)])
    if body.stream:
        events = frames(message, turn, sink_of(request))
        return event_stream(request, message.id, events, headers=headers)
    answer = await race(whole(message, turn), request.receive, state.terminate)
    return json_response(answer, headers)


async def count_tokens(request: Request) -> ASGIApp:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_count, mapping)
    model = await model_for(request, body.model)
    size = await with_body(request, num_characters, mapping)
    admit(request, num_choices=1, size=size)
    plan = await in_turn(request, partial(_plan_turn, body, model), size=size)
    headers = _headers(request, [*ignored, *without_effect(body, model)])
    return json_response({"input_tokens": len(plan.prompt)}, headers)


def _headers(request: Request, ignored: Iterable[str]) -> dict[str, str]:
    return {**ignored_header(ignored), "request-id": request.state.request_id}


def _plan(body: MessagesRequest, model: LoadedModel, call: State) -> tuple[TurnPlan, WorkOrder]:
    plan = _plan_turn(body, model)
    room = model.max_context - len(plan.prompt)
    if room < 1:
        raise ContextLengthError(
            f"prompt is too long: {len(plan.prompt)} tokens > {model.max_context - 1} maximum",
            param="messages",
        )
    fields = GenerationFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
    )
    # Agents ask for more than any context holds; the answer says when it ended for want of room.
    max_tokens = min(body.max_tokens, room)
    order = work_order(
        fields,
        model,
        call,
        [plan.prompt],
        max_tokens=max_tokens,
        logprobs=None,
        form=plan.form,
        prompt_param="messages",
    )
    return plan, order


def _plan_turn(body: CountTokensRequest, model: LoadedModel) -> TurnPlan:
    try:
        return plan_turn(conversation_of(body), model)
    except ContextLengthError as error:
        # By these words agents know that they must shorten the conversation.
        error.message = f"prompt is too long: {error.message}"
        raise
