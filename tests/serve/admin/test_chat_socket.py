"""A message over a WebSocket counts as a request of its key."""

import asyncio
import gc
import json
import logging
from types import SimpleNamespace

import pytest
from starlette.websockets import WebSocketState

from zse.serve.access.account import Account
from zse.serve.access.caller import Caller
from zse.serve.access.limits import Limits
from zse.serve.admin.chat_socket import ChatSocket


class Socket:
    """A connection whose client says what a test hands it."""

    def __init__(self, state, account) -> None:
        known = {"caller": account.caller, "account": account, "place": None}
        self.scope = {
            "type": "websocket",
            "path": "/ws/chat",
            "headers": [],
            "state": known,
            "app": SimpleNamespace(state=SimpleNamespace(zse=state)),
        }
        self.said: asyncio.Queue = asyncio.Queue()
        self.told: asyncio.Queue = asyncio.Queue()

    application_state = WebSocketState.CONNECTED

    async def receive(self):
        return await self.said.get()

    async def send_text(self, text):
        if self.application_state is WebSocketState.DISCONNECTED:
            raise RuntimeError("a close message has been sent")
        await self.told.put(json.loads(text))

    async def ask(self, text):
        """Ask, and return the type of what the answer ends with, and its error's code."""
        body = {"messages": [{"role": "user", "content": text}]}
        await self.said.put({"type": "websocket.receive", "text": json.dumps(body)})
        while (message := await self.told.get())["type"] not in ("done", "error"):
            pass
        return message["type"], message.get("error", {}).get("code")


def test_each_message_is_a_request_of_the_callers_minute(call, state, runner):
    async def talk():
        account = Account(Caller(requests_per_minute=2))
        account.limits = Limits()
        socket = Socket(state, account)
        serving = asyncio.create_task(ChatSocket(socket, state).run())
        answers = [await socket.ask("say:x") for _ in range(3)]
        await socket.said.put({"type": "websocket.disconnect"})
        await serving
        return answers, account

    answers, account = runner.run(talk())
    assert answers == [("done", None), ("done", None), ("error", "rate_limit_exceeded")]
    assert account.completion_tokens == 2


def test_an_answer_whose_client_has_left_ends_without_a_word(call, state, runner, caplog):
    async def talk():
        socket = Socket(state, Account(Caller()))
        socket.application_state = WebSocketState.DISCONNECTED
        failures = []
        handle = lambda _, context: failures.append(context)  # noqa: E731
        asyncio.get_running_loop().set_exception_handler(handle)
        for message in ({"messages": []}, {}):  # one is answered with an error, one begins
            await socket.said.put({"type": "websocket.receive", "text": json.dumps(message)})
        serving = asyncio.create_task(ChatSocket(socket, state).run())
        await asyncio.sleep(0.05)
        await socket.said.put({"type": "websocket.disconnect"})
        await serving
        gc.collect()
        return failures

    with caplog.at_level(logging.ERROR):
        assert runner.run(talk()) == []
    assert not caplog.records


@pytest.mark.parametrize("messages", [5, True, 1.5, "text", {"role": "user"}, [], [[]]])
def test_messages_that_are_none_are_refused_by_name(call, state, runner, caplog, messages):
    async def talk():
        socket = Socket(state, Account(Caller()))
        serving = asyncio.create_task(ChatSocket(socket, state).run())
        text = json.dumps({"messages": messages})
        await socket.said.put({"type": "websocket.receive", "text": text})
        told = await socket.told.get()
        await socket.said.put({"type": "websocket.disconnect"})
        await serving
        return told["error"]

    with caplog.at_level(logging.ERROR):
        error = runner.run(talk())
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith("messages")
    assert not caplog.records
