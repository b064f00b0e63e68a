"""How a server goes, so that no request it accepted is lost.

SIGTERM: readiness flips and for ``--leave-seconds`` everything is still answered, until balancers
have noticed; then new work is refused, what is in flight ends, and the process with it. A server
that is relieved stops accepting at once, since its successor accepts, and answers all that comes
over the connections it has. Answers say ``connection: close`` from the first moment of either.
A connection that was kept before that moment stays, until its client has asked once more or does
not use it any more: whoever closes it sooner does so under a request that is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.http.server import HTTPServer
    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve")

END_SECONDS = 5.0
"""After the drain: for error events to be written and connections to close."""
_QUIET_SECONDS = 1.0
"""Without a request, before a relieved server ends. Connections may be on their way from the queue,
or shaking hands."""
_REST_SECONDS = 6.0
"""Without a request, before a relieved server closes a connection. Clients that keep theirs for a
shorter time never meet the end: httpx does so for 5 s, Node for 4."""
_LOOK_SECONDS = 0.02


class Presence(IntEnum):
    """Whether a server is there for requests."""

    HERE = 0
    LEAVING = 1
    """Balancers are told to send no more; what comes is answered."""
    CLOSED = 2
    """What comes is refused."""


class Departure:
    """Takes a server out of service, once."""

    def __init__(self, state: AppState, server: HTTPServer) -> None:
        self._state = state
        self._server = server

    async def drain(self, *, leave_seconds: float, drain_seconds: float) -> None:
        """Leave: answer for a while, then refuse, then end what is left."""
        self._state.presence = Presence.LEAVING
        await self._until(lambda: False, leave_seconds)
        self._state.presence = Presence.CLOSED
        # An answer that is made, and that its client has not read yet, is lost with the process.
        await self._until(
            lambda: not (self._state.is_busy or self._server.is_writing), drain_seconds
        )
        await self._end()

    async def hand_over(self, *, drain_seconds: float) -> None:
        """Leave to a successor that accepts connections from the same socket."""
        self._state.presence = Presence.LEAVING
        for listening in self._server.servers:
            listening.close()
        await self._until(_Farewell(self._server), drain_seconds)
        self._state.presence = Presence.CLOSED
        await self._end()

    async def _until(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait for something, or for a second signal, or until the time has run out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_over() and not self._state.terminate.is_set():
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _end(self) -> None:
        state = self._state
        if state.is_busy:
            LOG.warning("drain ran out of time", extra={"in_flight": state.in_flight})
        state.terminate.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while state.is_busy:
                    await asyncio.sleep(_LOOK_SECONDS)
        self._server.should_exit = True


class _Farewell:
    """Closes connections that are not used any more; whether all are gone, and none came lately."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._last_busy = asyncio.get_running_loop().time()

    def __call__(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._server.server_state.tasks:
            self._last_busy = now
        self._server.close_idle(since=now - _REST_SECONDS)
        has_connections = bool(self._server.server_state.connections)
        return not has_connections and now - self._last_busy >= _QUIET_SECONDS


def has_stragglers() -> bool:
    """Whether a load, or a step that does not end, still runs in a thread."""
    return any(thread.name.startswith("zse-") for thread in threading.enumerate())


def end_now(exit_code: int) -> NoReturn:
    """End the process under its threads.

    They may be inside native code, which cannot be stopped and which an interpreter that takes
    itself down pulls the ground from: it would abort instead of ending with this exit code.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
