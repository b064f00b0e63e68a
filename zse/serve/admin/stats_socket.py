"""WS /ws/stats: what GET /api/stats says, again and again.

    <- {"type": "stats", "timestamp": 1750000000.0, "stats": {...}, "requests": {...}}

Everybody who listens gets the same sample: more listeners cost no more looks at the machine.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from zse.serve.access.policy import InvalidKeyError
from zse.serve.admin.analytics import overview_of
from zse.serve.admin.stats import look_at_system

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from zse.serve.state import AppState

SAMPLE_SECONDS = 0.5
"""A sample younger than this is sent as it is."""
GOING_AWAY, POLICY_VIOLATION = 1001, 1008


class Sampler:
    """Looks at the machine for all sockets."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._lock = asyncio.Lock()
        self._text = ""
        self._taken_at = float("-inf")

    async def sample(self) -> str:
        """Return a message, at most half a second old."""
        async with self._lock:
            if time.monotonic() - self._taken_at >= SAMPLE_SECONDS:
                self._text = await self._take()
                self._taken_at = time.monotonic()
            return self._text

    async def _take(self) -> str:
        timestamp = round(time.time(), 3)
        stats = await look_at_system(self._state)
        requests = await asyncio.to_thread(overview_of, self._state.history, minutes=1)
        message = {
            "type": "stats",
            "timestamp": timestamp,
            "stats": stats.model_dump(),
            "requests": requests.model_dump(),
        }
        return msgspec.json.encode(message).decode()


async def send_stats(socket: WebSocket, state: AppState, *, interval_seconds: float) -> None:
    """Send samples until the client leaves or the server ends; what the client says is not read.

    A client whose key lets in no longer is sent away before the next sample.
    """
    sampler = state.one_of(Sampler)
    leaving = asyncio.create_task(_left(socket))
    ending = asyncio.create_task(state.terminate.wait())
    try:
        while not (leaving.done() or ending.done()):
            try:
                state.access.check_again(socket.state.account.caller)
            except InvalidKeyError:
                await socket.close(POLICY_VIOLATION)
                return
            await socket.send_text(await sampler.sample())
            await asyncio.wait(
                {leaving, ending}, timeout=interval_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        if not leaving.done():
            await socket.close(GOING_AWAY)
    finally:
        for task in (leaving, ending):
            task.cancel()
        await asyncio.gather(leaving, ending, return_exceptions=True)


async def _left(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
