"""POST /api/chat and /api/generate: answers, line by line unless the request wants one piece."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.engine.admission import check_text
from zse.serve.asking import writer_for
from zse.serve.conversation import TurnPlan, plan_turn
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import (
    ignored_header,
    json_response,
    read_body,
    sink_of,
    state_of,
)
from zse.serve.http.streaming import EventStream, race
from zse.serve.ollama.conversation import chat_of, fields_of, form_of, max_tokens_of, question_of
from zse.serve.ollama.models import plain_name
from zse.serve.ollama.protocol import OllamaChatRequest, OllamaGenerateRequest, read_ollama
from zse.serve.ollama.writer import Writer
from zse.serve.openai.completion_plan import gap_prompt
from zse.serve.openai.sampling import work_order
from zse.serve.preparing import admit, in_turn, num_characters
from zse.serve.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.generation import WorkOrder
    from zse.serve.ollama.protocol import OllamaFields
    from zse.serve.state import LoadedModel

Planned: TypeAlias = "tuple[TurnPlan, tuple[int, ...]]"
"""How an answer is made and read, and further tokens that end it."""
_LINES = {"content-type": "application/x-ndjson"}


async def ollama_chat(request: Request) -> ASGIApp:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_ollama, mapping, OllamaChatRequest)
    model = await writer_for(request, plain_name(request, body.model))
    turn = None
    if body.messages:
        turn = await _turn(request, mapping, body, model, partial(_of_chat, body, model))
    return await _answer(request, body, turn, ignored=ignored, is_chat=True)


async def ollama_generate(request: Request) -> ASGIApp:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_ollama, mapping, OllamaGenerateRequest)
    model = await writer_for(request, plain_name(request, body.model))
    turn = None
    if body.prompt or body.suffix:
        planned = _of_text if body.raw or body.suffix else _of_question
        turn = await _turn(request, mapping, body, model, partial(planned, body, model))
    return await _answer(request, body, turn, ignored=ignored, is_chat=False)


async def _answer(
    request: Request,
    body: OllamaFields,
    turn: Turn | None,
    *,
    ignored: tuple[str, ...],
    is_chat: bool,
) -> ASGIApp:
    writer = Writer(
        body.model,
        is_chat=is_chat,
        has_logprobs=bool(body.logprobs),
        arrival=request.state.arrival,
    )
    headers, terminate = ignored_header(ignored), state_of(request).terminate
    if turn is None:
        return json_response(writer.nothing(), headers)
    if body.stream is False:
        answer = await race(writer.whole(turn), request.receive, terminate)
        return json_response(answer, headers)
    return EventStream(
        writer.lines(turn, sink_of(request)),
        terminate=terminate,
        headers={**headers, **_LINES},
    )


async def _turn(
    request: Request,
    mapping: dict[str, Any],
    body: OllamaFields,
    model: LoadedModel,
    planned: Callable[[], Planned],
) -> Turn:
    """Let a request in and answer what is planned of it, when its turn comes.

    Raises:
        ZSEError: There is no room, or it cannot be answered.
    """
    size = await with_body(request, num_characters, mapping)
    admit(request, num_choices=1, size=size)
    job = partial(_ordered, body, model, request.state, planned)
    plan, order = await in_turn(request, job, size=size)
    return Turn(state_of(request), model, order, plan)


def _ordered(
    body: OllamaFields, model: LoadedModel, call: State, planned: Callable[[], Planned]
) -> tuple[TurnPlan, WorkOrder]:
    plan, end_token_ids = planned()
    fields = fields_of(body)
    fields.stop_token_ids = list(end_token_ids) or None
    order = work_order(
        fields,
        model,
        call,
        [plan.prompt],
        max_tokens=max_tokens_of(body.options),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=plan.form,
        param="options.num_predict",
        prompt_param="messages" if isinstance(body, OllamaChatRequest) else "prompt",
    )
    return plan, order


def _of_chat(body: OllamaChatRequest, model: LoadedModel) -> Planned:
    return plan_turn(chat_of(body), model), ()


def _of_question(body: OllamaGenerateRequest, model: LoadedModel) -> Planned:
    return plan_turn(question_of(body), model), ()


def _of_text(body: OllamaGenerateRequest, model: LoadedModel) -> Planned:
    """Plan what continues a text as it is, or fills its gap."""
    for name in ("prompt", "suffix"):
        check_text(getattr(body, name) or "", max_context=model.max_context, param=name)
    form = form_of(body.format)
    ends: tuple[int, ...] = ()
    if body.suffix:
        prompt, ends = gap_prompt(body.prompt, body.suffix, model)
    else:
        prompt = model.tokenizer.encode(body.prompt)
    return TurnPlan(prompt=prompt, form=form), ends
