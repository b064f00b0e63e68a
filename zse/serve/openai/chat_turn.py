"""From a chat request to the turn that answers it: admission, the prompt, the order of its work."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from zse.engine.reading import PromptQuery
from zse.serve.asking import writer_for
from zse.serve.conversation import plan_turn
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import state_of
from zse.serve.openai.conversation import check_chat, conversation_of
from zse.serve.openai.sampling import work_order
from zse.serve.preparing import admit, in_turn, num_characters
from zse.serve.turn import Turn

if TYPE_CHECKING:
    from starlette.datastructures import State
    from starlette.requests import Request

    from zse.serve.conversation import TurnPlan
    from zse.serve.generation import WorkOrder
    from zse.serve.openai.protocol import ChatRequest
    from zse.serve.state import LoadedModel


async def open_turn(
    request: Request, mapping: dict[str, Any], body: ChatRequest
) -> tuple[LoadedModel, Turn]:
    """Let a conversation in and plan its answers; ``mapping`` is what ``body`` was read from.

    Raises:
        ZSEError: There is no such model or no room, or the conversation cannot be answered.
    """
    state = state_of(request)
    model = await writer_for(request, body.model)
    check_chat(body)
    size = await with_body(request, num_characters, mapping)
    admit(request, num_choices=body.n or 1, size=size)
    job = partial(_plan, body, model, request.state)
    plan, order = await in_turn(request, job, size=size)
    return model, Turn(state, model, order, plan)


def _plan(body: ChatRequest, model: LoadedModel, call: State) -> tuple[TurnPlan, WorkOrder]:
    plan = plan_turn(conversation_of(body), model)
    asked = body.prompt_logprobs
    has_new_name = body.max_completion_tokens is not None
    order = work_order(
        body,
        model,
        call,
        [plan.prompt],
        max_tokens=body.max_completion_tokens if has_new_name else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=plan.form,
        query=PromptQuery(logprobs=asked) if asked is not None else None,
        param="max_completion_tokens" if has_new_name else "max_tokens",
        prompt_param="messages",
    )
    return plan, order
