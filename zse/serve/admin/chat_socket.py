"""WS /ws/chat: conversations over one connection, one answer at a time.

    -> {"type": "chat", "id": "1", "messages": [...], ...}   more fields of chat completions
    <- {"type": "start", "id": "1", "model": "qwen"}
    <- {"type": "token", "id": "1", "index": 0, "content": "Hel"}
    <- {"type": "end", "id": "1", "index": 0, "finish_reason": "stop"}
    <- {"type": "done", "id": "1", "usage": {...}}
    -> {"type": "cancel"}                                     ends the answer that is being made
    <- {"type": "error", "id": "1", "error": {"message", "type", "param", "code"}}

Reasoning comes as ``reasoning``, calls of tools as ``tool_call`` and ``tool_call_arguments``. A
client that reads slowly slows its answer down, and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.websockets import WebSocketDisconnect, WebSocketState

from zse.errors import ShuttingDownError, ZSEError
from zse.serve.http.bodies import JSONContent
from zse.serve.http.errors import BadRequestError, describe
from zse.serve.http.json_body import SHORT_BYTES, read_mapping, with_body
from zse.serve.openai.chat import turns_for
from zse.serve.openai.protocol import ChatRequest, read_request
from zse.serve.turn import CallArguments, CallOpened, ChoiceEnded, TextPart, ToolRan

if TYPE_CHECKING:
    from starlette.types import Message
    from starlette.websockets import WebSocket

    from zse.serve.access.account import Account
    from zse.serve.state import AppState
    from zse.serve.turn import Event

LOG = logging.getLogger("zse.serve")

GOING_AWAY = 1001
MAX_ID_CHARACTERS = 128
LONG_CONVERSATION = 64
"""Messages; a conversation of more is checked off the event loop."""


class BusyError(BadRequestError):
    """An answer is being made; there is one at a time."""

    http_status = 409

    def __init__(self) -> None:
        message = 'An answer is being made; wait for "done", or send {"type": "cancel"}.'
        super().__init__(message, code="conversation_busy")


class ChatSocket:
    """One open connection."""

    def __init__(self, socket: WebSocket, state: AppState) -> None:
        self._socket = socket
        self._state = state
        self._answering: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Answer until the client leaves or the server ends."""
        ending = asyncio.create_task(self._state.terminate.wait())
        try:
            while True:
                receiving = asyncio.create_task(self._socket.receive())
                await asyncio.wait({receiving, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    await _cancelled(receiving)
                    await self._stop()
                    await self._tell_error(ShuttingDownError("The server is shutting down."))
                    await self._socket.close(GOING_AWAY)
                    return
                message = receiving.result()
                if message["type"] == "websocket.disconnect":
                    return
                await self._take(message)
        finally:
            await _cancelled(ending)
            await self._stop()

    async def _take(self, message: Message) -> None:
        """Begin or cancel an answer, as a message asks; what is wrong with it is told."""
        asked_id: str | None = None
        try:
            mapping = await _mapping_of(message)
            kind, asked_id = mapping.pop("type", "chat"), _id_of(mapping.pop("id", None))
            if kind == "cancel":
                await self._stop()
            elif kind != "chat":
                raise BadRequestError("'type' is neither 'chat' nor 'cancel'.", param="type")
            elif self._answering is not None and not self._answering.done():
                raise BusyError
            else:
                self._answering = asyncio.create_task(self._answer(mapping, asked_id))
        except ZSEError as error:
            await self._tell_error(error, asked_id)

    async def _answer(self, mapping: dict[str, Any], asked_id: str | None) -> None:
        try:
            await self._stream(mapping, asked_id or f"chatcmpl-{uuid.uuid4().hex}")
        except asyncio.CancelledError:
            if not self._state.terminate.is_set():
                with contextlib.suppress(Exception):  # the client may be gone already
                    await self._tell({"type": "cancelled", "id": asked_id})
            raise
        except Exception as error:
            if self._socket.application_state is WebSocketState.DISCONNECTED:
                return  # the client left, which is how sending fails from then on
            if not isinstance(error, ZSEError) or error.http_status == 500:
                LOG.exception("an answer over a WebSocket failed")
            with contextlib.suppress(WebSocketDisconnect):  # the client may be gone already
                await self._tell_error(error, asked_id)

    async def _stream(self, mapping: dict[str, Any], answer_id: str) -> None:
        request = self._as_request(mapping)
        account: Account = request.state.account
        self._state.access.check_again(account.caller)
        if account.limits is not None:
            await account.limits.admit(account.caller)
        try:
            body, _ = await with_body(request, read_request, mapping, ChatRequest)
            opened = await turns_for(request, mapping, body)
            turn = opened.turn
            async with aclosing(turn.events()) as events:
                start = {"type": "start", "id": answer_id, "model": opened.model.name}
                await self._tell({**start, **opened.told})
                async for event in events:
                    await self._tell({**_told(event), "id": answer_id})
            await self._tell({"type": "done", "id": answer_id, "usage": turn.usage()})
        finally:
            if (room := request.state.room) is not None:
                room.abandon()
            if (use := request.state.use) is not None:
                use.end()

    def _as_request(self, mapping: dict[str, Any]) -> Request:
        """Return a message as a request of its own, with the caller of the connection."""
        seconds = self._state.options.max_request_seconds
        messages = mapping.get("messages")
        state = {
            **self._socket.scope["state"],
            "request_id": f"req_{uuid.uuid4().hex}",
            "arrival": time.perf_counter(),
            "deadline": asyncio.get_running_loop().time() + seconds if seconds else None,
            "room": None,
            "use": None,
            "has_long_body": isinstance(messages, list) and len(messages) > LONG_CONVERSATION,
        }
        scope = {**self._socket.scope, "type": "http", "method": "POST", "state": state}
        return Request(scope, receive=_never)

    async def _stop(self) -> None:
        if self._answering is not None:
            await _cancelled(self._answering)

    async def _tell(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(msgspec.json.encode(message).decode())

    async def _tell_error(self, error: BaseException, asked_id: str | None = None) -> None:
        detail = msgspec.to_builtins(describe(error)[1])
        await self._tell({"type": "error", "id": asked_id, "error": detail})


async def _never() -> Message:
    """Say nothing of a client: that it left is seen by whoever reads the connection."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it to have ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _mapping_of(message: Message) -> dict[str, Any]:
    text = message.get("text")
    body = text.encode() if text is not None else message.get("bytes") or b""
    JSONContent().add(body)
    if len(body) <= SHORT_BYTES:
        return read_mapping(body)
    return await asyncio.to_thread(read_mapping, body)


def _id_of(value: object) -> str | None:
    if value is None or (isinstance(value, str) and len(value) <= MAX_ID_CHARACTERS):
        return value
    raise BadRequestError(f"'id' is a text of up to {MAX_ID_CHARACTERS} characters.", param="id")


def _told(event: Event) -> dict[str, Any]:
    if isinstance(event, TextPart):
        return {"type": "token", "index": event.index, "content": event.text}
    if isinstance(event, ChoiceEnded):
        return {"type": "end", "index": event.index, "finish_reason": event.reason}
    if isinstance(event, CallOpened):
        called = {"call": event.call, "call_id": event.id, "name": event.name}
        return {"type": "tool_call", "index": event.index, **called}
    if isinstance(event, CallArguments):
        called = {"call": event.call, "arguments": event.text}
        return {"type": "tool_call_arguments", "index": event.index, **called}
    if isinstance(event, ToolRan):
        ran = {"call_id": event.id, "name": event.name, "arguments": event.arguments}
        told = {"output": event.output, "is_error": event.is_error}
        return {"type": "tool_result", "index": event.index, **ran, **told}
    return {"type": "reasoning", "index": event.index, "content": event.text}
