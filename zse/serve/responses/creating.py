"""POST /v1/responses and /v1/responses/input_tokens: what is asked, and what is made of it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.records import record
from zse.serve.access.caller import caller_of
from zse.serve.asking import writer_for
from zse.serve.conversation import plan_turn
from zse.serve.http.errors import BadRequestError, UnknownIdError
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import (
    event_stream,
    ignored_header,
    json_response,
    read_body,
    state_of,
)
from zse.serve.http.streaming import EventStream, race
from zse.serve.openai.protocol import GenerationFields
from zse.serve.openai.sampling import work_order
from zse.serve.preparing import admit, in_turn, num_characters
from zse.serve.responses.conversation import conversation_of, without_effect
from zse.serve.responses.items import input_items, new_id
from zse.serve.responses.output import new_response
from zse.serve.responses.protocol import read_count, read_response
from zse.serve.responses.run import ResponseRun
from zse.serve.responses.store import ResponseStore, StoredResponse
from zse.serve.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.conversation import TurnPlan
    from zse.serve.generation import WorkOrder
    from zse.serve.responses.items import Item
    from zse.serve.responses.protocol import InputTokensRequest, ResponsesRequest
    from zse.serve.state import LoadedModel


async def create_response(request: Request) -> ASGIApp:
    """Handle ``POST /v1/responses``.

    Raises:
        UnknownIdError: ``previous_response_id``, or an item that is referred to, is not there.
        OverloadedError: The queue is full.
    """
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_response, mapping)
    state, tenant = state_of(request), caller_of(request.scope).tenant
    model, store = await writer_for(request, body.model), state.one_of(ResponseStore)
    said = _what_was_said(body, store, tenant)
    size = await with_body(request, num_characters, [mapping, said.before])
    admit(request, num_choices=1, size=size)
    job = partial(_plan, body, model, request.state, said)
    plan, order = await in_turn(request, job, size=size)
    response = new_response(body, order.params, response_id=new_id("resp"), model=model.name)
    response["store"] = body.is_stored and store.keeps
    stored = StoredResponse(response, said.items, input_size=size)

    def keep() -> None:
        if response["store"]:
            store.put(tenant, stored)

    run = ResponseRun(
        Turn(state, model, order, plan),
        response,
        is_summarized=body.reasoning is not None and body.reasoning.asked_summary is not None,
        keep=keep,
    )
    headers = _ignored(ignored, said, body, model)
    if body.background:
        stored.run = run
        return _in_background(request, stored, run, body, headers)
    if body.stream:
        frames = run.frames()
        return event_stream(request, response["id"], frames, headers=headers, failure=run.failed)
    return json_response(await race(run.whole(), request.receive, state.terminate), headers)


async def count_input_tokens(request: Request) -> ASGIApp:
    """Handle ``POST /v1/responses/input_tokens``.

    Raises:
        UnknownIdError: As ``create_response``.
    """
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_count, mapping)
    state, tenant = state_of(request), caller_of(request.scope).tenant
    model = await writer_for(request, body.model)
    said = _what_was_said(body, state.one_of(ResponseStore), tenant)
    size = await with_body(request, num_characters, [mapping, said.before])
    admit(request, num_choices=1, size=size)
    plan = await in_turn(request, partial(_plan_turn, body, model, said), size=size)
    count = {"object": "response.input_tokens", "input_tokens": len(plan.prompt)}
    return json_response(count, _ignored(ignored, said, body, model))


@record
class _Said:
    """What a conversation holds so far."""

    before: list[Item]
    """The items of the responses that this one follows."""
    items: list[Item]
    """The request's own."""
    ignored: list[str]
    """Takes the names of fields that nobody reads."""


def _what_was_said(body: InputTokensRequest, store: ResponseStore, tenant: str) -> _Said:
    before: list[Item] = []
    if body.previous_response_id is not None:
        try:
            before = store.chain(tenant, body.previous_response_id)
        except UnknownIdError as error:
            error.param, error.error_code = "previous_response_id", "previous_response_not_found"
            raise
    items = input_items(body.input, lambda item_id: store.item(tenant, item_id))
    return _Said(before=before, items=items, ignored=[])


def _ignored(
    names: Iterable[str], said: _Said, body: InputTokensRequest, model: LoadedModel
) -> dict[str, str]:
    own = without_effect(body, model)
    return ignored_header([*names, *said.ignored, *own])


def _plan(
    body: ResponsesRequest, model: LoadedModel, call: State, said: _Said
) -> tuple[TurnPlan, WorkOrder]:
    plan = _plan_turn(body, model, said)
    order = work_order(
        GenerationFields(temperature=body.temperature, top_p=body.top_p),
        model,
        call,
        [plan.prompt],
        max_tokens=body.max_output_tokens,
        logprobs=body.num_logprobs,
        form=plan.form,
        param="max_output_tokens",
        prompt_param="input",
    )
    return plan, order


def _plan_turn(body: InputTokensRequest, model: LoadedModel, said: _Said) -> TurnPlan:
    conversation = conversation_of(body, said.before, said.items, said.ignored)
    try:
        return plan_turn(conversation, model)
    except ZSEError as error:
        error.param = "input" if error.param == "messages" else error.param
        raise


def _in_background(
    request: Request,
    stored: StoredResponse,
    run: ResponseRun,
    body: ResponsesRequest,
    headers: dict[str, str],
) -> ASGIApp:
    state = state_of(request)
    if not stored.response["store"]:
        raise BadRequestError(
            "This server keeps no responses, so it makes none in the background.",
            param="background",
        )
    store = state.one_of(ResponseStore)
    if body.stream:
        store.refuse_events()
    store.put(caller_of(request.scope).tenant, stored)
    room, request.state.room = request.state.room, None  # they outlive the request
    use, request.state.use = request.state.use, None
    keep_seconds = state.options.resume_seconds if body.stream else 0.0
    later = partial(asyncio.get_running_loop().call_later, keep_seconds, stored.forget_run)
    run.start(state.terminate, room, use, is_streamed=bool(body.stream), forget=later)
    if run.log is None:
        return json_response(stored.response, headers)
    return EventStream(run.log.read(), terminate=state.terminate, headers=headers)
