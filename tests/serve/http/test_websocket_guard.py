"""How many WebSockets one caller may hold, of those that all of them share."""

import asyncio

import pytest

from zse.serve.access.caller import ANYBODY, Caller
from zse.serve.http.websocket_guard import WebSocketGuard


async def opened(guard, caller, until):
    """Hold a WebSocket until told; return what a refused one is told, else the status 101."""
    told = []
    scope = {
        "type": "websocket",
        "path": "/ws/chat",
        "headers": [(b"host", b"localhost")],
        "state": {"caller": caller},
        "extensions": {"websocket.http.response": {}},
    }

    async def send(message):
        told.append(message)

    async def receive():
        await until.wait()
        return {"type": "websocket.disconnect"}

    await guard(scope, receive, send)
    return told[0]["status"] if told else 101


async def holding(scope, receive, send):
    await receive()


@pytest.mark.parametrize(
    ("callers", "refused"),
    [
        ([ANYBODY] * 7, [6]),
        ([Caller(key_id="a")] * 6 + [Caller(key_id="b")], [4, 5]),
        ([Caller(key_id="a")] * 3 + [Caller(key_id="b")] * 2, []),
    ],
)
def test_one_key_leaves_room_for_others_and_who_needs_none_has_all(callers, refused):
    async def run():
        guard, until = WebSocketGuard(holding, origins=frozenset(), max_open=6), asyncio.Event()
        tasks = []
        for caller in callers:
            tasks.append(asyncio.create_task(opened(guard, caller, until)))
            await asyncio.sleep(0)
        until.set()
        statuses = await asyncio.gather(*tasks)
        again = await opened(guard, callers[0], until)
        return [index for index, status in enumerate(statuses) if status == 429], again

    assert asyncio.run(run()) == (refused, 101)
