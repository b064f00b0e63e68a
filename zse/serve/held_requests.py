"""Requests that came before the model and wait for it: they go on the moment that it is there."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.serve.state import AppState

_BYTES_OF_A_TOKEN = 6
"""Of a text, or of a number in a list of them, with room for what stands around them."""
_LOOK_SECONDS = 0.05
"""After which they look for another end of the start: it failed, or the server leaves."""


class HeldRequests:
    """Made in the server's loop, by the first request that waits."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._is_there = asyncio.Event()
        self.num_waiting = 0
        self.most_tokens = 0
        """About how many tokens the longest of them has, by its bytes: nobody has read it yet."""

    async def wait(self, seconds: float, body_bytes: int = 0) -> None:
        """Return when the start has ended, or after so long.

        Args:
            seconds: Until when the request may wait.
            body_bytes: Of the request.
        """
        last = self._loop.time() + seconds
        if not self.num_waiting:
            from zse.serve.openai.protocol import prepare_reading

            prepare_reading()
        self.num_waiting += 1
        self.most_tokens = max(self.most_tokens, body_bytes // _BYTES_OF_A_TOKEN)
        try:
            while self._state.is_starting and (left := last - self._loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_there.wait(), min(left, _LOOK_SECONDS))
        finally:
            self.num_waiting -= 1

    def release(self) -> None:
        """Let all go on; the model is in the table. Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and they with it
            self._loop.call_soon_threadsafe(self._is_there.set)
