"""A message over a WebSocket counts as a request of its key."""

import asyncio
import json
from types import SimpleNamespace

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

    async def receive(self):
        return await self.said.get()

    async def send_text(self, text):
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
