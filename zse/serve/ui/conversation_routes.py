"""/api/chat/conversations: the playground's conversations, their answers, and taking them along."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from zse.serve.access.caller import caller_of
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.asking import let_go
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import state_of
from zse.serve.http.streaming import EventStream, nobody
from zse.serve.openai.chat import turns_for
from zse.serve.openai.protocol import ChatRequest, read_request
from zse.serve.ui.answering import Answers, frame
from zse.serve.ui.conversation_shapes import (
    AnswerAsked,
    ConversationAsked,
    ConversationChange,
    ConversationList,
    ConversationShown,
    MessageAsked,
    MessageList,
    MessageShown,
)
from zse.serve.ui.conversations import Conversations, branch
from zse.serve.ui.export import as_json, as_markdown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from zse.serve.ui.conversations import Row

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/chat/conversations",
    tags=["chat"],
    dependencies=[Depends(Guard("inference"))],
)
LONG_CONVERSATION = 64
"""Messages; a conversation of more is checked off the event loop."""


@router.get("", summary="List the conversations of this key, or those that hold some text.")
async def list_conversations(
    request: Request,
    q: Annotated[str, Query(max_length=200, description="Text in title or messages.")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> ConversationList:
    rows = await _stored(request, lambda store, owner: store.find(owner, query=q, limit=limit))
    return ConversationList(conversations=[_shown(row) for row in rows])


@router.post("", summary="Begin a conversation.", status_code=201)
async def create_conversation(request: Request, asked: ConversationAsked) -> ConversationShown:
    facts = asked.model_dump()
    return _shown(await _stored(request, lambda store, owner: store.create(owner, **facts)))


@router.get("/{conversation}", summary="Show a conversation, without its messages.")
async def get_conversation(request: Request, conversation: str) -> ConversationShown:
    return _shown(await _stored(request, lambda store, owner: store.get(owner, conversation)))


@router.patch("/{conversation}", summary="Change a title, a system prompt or settings.")
async def change_conversation(
    request: Request, conversation: str, change: ConversationChange
) -> ConversationShown:
    facts = change.model_dump(exclude_none=True)
    if change.settings is not None:
        facts["settings"] = change.settings.model_dump()
    job = partial(_change, conversation, facts)
    return _shown(await _stored(request, job))


@router.delete("/{conversation}", summary="Forget a conversation.", status_code=204)
async def delete_conversation(request: Request, conversation: str) -> None:
    answers = state_of(request).one_of(Answers)
    rows = await _stored(request, lambda store, owner: store.messages(owner, conversation))
    for run in [answers.get(row["id"]) for row in rows]:
        if run is not None:
            await run.stop()
    await _stored(request, lambda store, owner: store.delete(owner, conversation))


@router.get("/{conversation}/messages", summary="Show the messages of all branches.")
async def list_messages(request: Request, conversation: str) -> MessageList:
    rows = await _stored(request, lambda store, owner: store.messages(owner, conversation))
    current = state_of(request).one_of(Answers).current
    return MessageList(messages=[MessageShown(**_of_message(current(row))) for row in rows])


@router.post("/{conversation}/messages", summary="Add a message.", status_code=201)
async def add_message(request: Request, conversation: str, asked: MessageAsked) -> MessageShown:
    facts = asked.model_dump()
    row = await _stored(request, lambda store, owner: store.add(owner, conversation, **facts))
    return MessageShown(**_of_message(row))


@router.post(
    "/{conversation}/answers", summary="Answer a message in the background.", status_code=202
)
async def answer_message(request: Request, conversation: str, asked: AnswerAsked) -> MessageShown:
    found = await _stored(request, lambda store, owner: store.get(owner, conversation))
    rows = await _stored(request, lambda store, owner: store.messages(owner, conversation))
    mapping = chat_mapping(found, branch(rows, asked.parent))
    request.state.has_long_body = len(mapping["messages"]) > LONG_CONVERSATION
    body, _ = await with_body(request, read_request, mapping, ChatRequest)
    lasting = _lasting(request)
    try:
        opened = await turns_for(lasting, mapping, body)
        facts = {
            "role": "assistant",
            "content": "",
            "status": "writing",
            "model": opened.model.name,
            "sources": opened.sources or [],
        }
        row = await _stored(
            request,
            lambda store, owner: store.add(owner, conversation, parent=asked.parent, **facts),
        )
    except BaseException:
        _give_back(lasting)
        raise
    state_of(request).one_of(Answers).begin(opened.turn, row, partial(_give_back, lasting))
    return MessageShown(**_of_message(row))


@router.get("/{conversation}/messages/{message}/events", summary="Read an answer as it grows.")
async def read_answer(request: Request, conversation: str, message: str) -> Response:
    row = await _message(request, conversation, message)
    run = state_of(request).one_of(Answers).get(message)
    frames = run.frames() if run is not None else _whole(request, row)
    stream: Any = EventStream(frames, terminate=state_of(request).terminate, headers={})
    return _Streamed(stream)


@router.post("/{conversation}/messages/{message}/stop", summary="Stop an answer.")
async def stop_answer(request: Request, conversation: str, message: str) -> MessageShown:
    await _message(request, conversation, message)
    run = state_of(request).one_of(Answers).get(message)
    if run is not None:
        await run.stop()
    return MessageShown(**_of_message(await _message(request, conversation, message)))


@router.get(
    "/{conversation}/export",
    summary="Take a conversation along.",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, "text/markdown": {}}}},
)
async def export_conversation(
    request: Request,
    conversation: str,
    format: Annotated[  # noqa: A002 - its name in the address
        Literal["json", "markdown"], Query(description="JSON has every branch.")
    ] = "json",
) -> Response:
    found = await _stored(request, lambda store, owner: store.get(owner, conversation))
    rows = await _stored(request, lambda store, owner: store.messages(owner, conversation))
    ending = "json" if format == "json" else "md"
    headers = {
        "content-disposition": f'attachment; filename="{found["id"]}.{ending}"',
        "x-content-type-options": "nosniff",
    }
    if format == "json":
        return JSONResponse(as_json(found, rows), headers=headers)
    media_type = "text/markdown; charset=utf-8"
    return PlainTextResponse(as_markdown(found, rows), headers=headers, media_type=media_type)


class _Streamed(Response):
    """An answer that sends events, as FastAPI wants one."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._stream(scope, receive, send)


def chat_mapping(conversation: Row, messages: list[Row]) -> dict[str, Any]:
    """Return what a chat completion is asked with to go on behind some messages."""
    said = [{"role": one["role"], "content": one["content"]} for one in messages]
    system = conversation["system"]
    told = [{"role": "system", "content": system}] if system else []
    settings = {name: value for name, value in conversation["settings"].items() if value}
    if conversation["settings"].get("temperature") == 0:
        settings["temperature"] = 0
    return {"messages": told + said, **settings}


def _lasting(request: Request) -> Request:
    """Return the same request as one that nobody leaves, and whose room outlives its answer.

    Rounds of tools behind the first take room and model anew, when the request is long over. What
    they use is on its account, which the audit log waits for.
    """
    request.state.account.hold()
    return Request({**request.scope, "state": {**request.scope["state"]}}, nobody)


def _give_back(request: Request) -> None:
    request.state.account.release()
    if (room := request.state.room) is not None:
        room.abandon()
    let_go(request)


async def _whole(request: Request, row: Row) -> AsyncGenerator[bytes, None]:
    """Yield a message that nobody writes on."""
    told = MessageShown(**_of_message(state_of(request).one_of(Answers).current(row)))
    yield frame({**told.model_dump(), "begins": True})


async def _message(request: Request, conversation: str, message: str) -> Row:
    rows = await _stored(request, lambda store, owner: store.messages(owner, conversation))
    return branch(rows, message)[-1]


async def _stored(request: Request, job: Callable[[Conversations, str], Any]) -> Any:
    """Do something with the conversations of who asks, beside the loop."""
    store, owner = state_of(request).one_of(Conversations), caller_of(request.scope).key_id
    return await asyncio.to_thread(job, store, owner)


def _change(conversation: str, facts: dict[str, Any], store: Conversations, owner: str) -> Row:
    return store.update(owner, conversation, **facts)


def _shown(row: Row) -> ConversationShown:
    return ConversationShown(**{name: row[name] for name in ConversationShown.model_fields})


def _of_message(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in MessageShown.model_fields}
