"""uvicorn's server, woken once a second and when it is asked to end, not ten times a second.

Each time it wakes costs as much as some tokens; a process that waits for requests should wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from uvicorn.server import Server

if TYPE_CHECKING:
    from uvicorn.config import Config

TICK_SECONDS = 1.0
_TICKS = 10
"""What uvicorn counts in that time."""


class QuietServer(Server):
    """Serves the sockets that it is given until ``should_exit`` is set, in any thread."""

    def __init__(self, config: Config) -> None:
        self._is_asked = False
        self._asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end."""
        return self._is_asked

    @should_exit.setter
    def should_exit(self, is_asked: bool) -> None:
        self._is_asked = is_asked
        if is_asked and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is over
                self._loop.call_soon_threadsafe(self._asked.set)

    async def main_loop(self) -> None:
        """Keep the date of answers and look whether to end."""
        self._loop = asyncio.get_running_loop()
        counter = 0
        while not await self.on_tick(counter):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._asked.wait()
            counter += _TICKS
