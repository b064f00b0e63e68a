"""The door: limits that all connections share: how many, which are idle, whose deadline has passed.

Deadlines are checked by one sweep over all connections, several times within the shortest of them,
and not by a timer each: writing a token sets no timer.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from math import floor
from typing import TYPE_CHECKING, Protocol

from zse.errors import OverloadedError, UsageError

if TYPE_CHECKING:
    from zse.server_options import HTTPOptions

LOG = logging.getLogger("zse.serve.door")

MAX_CONNECTIONS = 4096
"""More are never needed beside the queue of one model, and each takes memory."""
RESERVED_FILES = 128
"""Open files that are not connections: the model, the log, the engine, what is fetched."""
MAX_EXTRA = 32
"""Connections past the limit that are listened to for a moment: they may be health checks."""
EXTRA_SECONDS = 2.0
_SWEEPS = 8
"""Sweeps within the shortest of the deadlines."""


class TooManyConnectionsError(OverloadedError):
    """All connections that the server takes at once are in use."""

    http_status = 503
    error_code = "too_many_connections"


class ReadTimeoutError(UsageError):
    """The request did not come in time."""

    http_status = 408
    error_code = "request_timeout"


class Visitor(Protocol):
    """A connection, as the door sees it."""

    def check(self, now: float) -> None:
        """End what takes longer than it may; ``now`` is the loop's time."""

    def turn_away(self) -> None:
        """Close at once: it rests, and its place is needed."""

    def retire(self) -> None:
        """Close, unless a request has come: it has rested for long, and the server leaves."""


class Door:
    """Counts connections in and out."""

    def __init__(self, options: HTTPOptions) -> None:
        self.options = options
        self.max_connections = connection_limit(options.max_connections)
        self._inside: set[Visitor] = set()
        self._resting: dict[Visitor, float] = {}
        """Idle connections, the longest idle first, and since when: between requests, or before the
        first byte of the first."""
        self._extra: dict[Visitor, None] = {}
        shortest = min(options.read_timeout, options.write_timeout, options.keep_alive_timeout)
        self._sweep_seconds = min(1.0, max(0.02, shortest / _SWEEPS))
        self._sweeper: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._has_slept = False

    def enter(self, visitor: Visitor) -> bool:
        """Count a new connection in; return whether there was room for it.

        Where there is none, the longest idle connection is closed. When none is idle, the new one
        is an extra: it has a moment to prove that it is a health check.
        """
        if self._sweeper is None:
            self._arm()
        has_room = len(self._inside) < self.max_connections
        if not has_room and self._resting:
            next(iter(self._resting)).turn_away()
            has_room = True
        (self._inside.add if has_room else self._add_extra)(visitor)
        return has_room

    def leave(self, visitor: Visitor) -> None:
        """Let a connection go; it may have gone before."""
        self._inside.discard(visitor)
        self._extra.pop(visitor, None)
        self._resting.pop(visitor, None)

    def rest(self, visitor: Visitor) -> None:
        """Note that a connection waits for a request; its place may be taken from it."""
        if visitor in self._inside:
            self._resting[visitor] = asyncio.get_running_loop().time()

    def retire(self, *, since: float) -> None:
        """Close the connections that have rested since a moment of the loop's clock or longer."""
        for visitor, rested_since in list(self._resting.items()):
            if rested_since > since:
                break
            visitor.retire()

    def work(self, visitor: Visitor) -> None:
        """Note that a connection has begun with a request."""
        self._resting.pop(visitor, None)

    def _add_extra(self, visitor: Visitor) -> None:
        if len(self._extra) >= MAX_EXTRA:
            oldest = next(iter(self._extra))
            oldest.turn_away()
            self.leave(oldest)
        self._extra[visitor] = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + self._sweep_seconds
        if self._sweep_seconds >= 1:
            when = floor(when)  # with all that is looked at each second: the loop wakes once
        self._due = when
        self._sweeper = loop.call_at(when, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        now = loop.time()
        # What came while this process did not run (a frozen container, a machine that swaps) lies
        # in the kernel: it is read before anybody is told that it did not come.
        self._has_slept = not self._has_slept and now - self._due > self._sweep_seconds
        if not self._has_slept:
            for visitor in [*self._inside, *self._extra]:
                visitor.check(now)
        if self._inside or self._extra:
            self._arm()


def connection_limit(wanted: int) -> int:
    """Return how many connections fit below the limit of open files; 0 wants as many as do."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(files - RESERVED_FILES, 16)
    if wanted > most:
        LOG.warning("fewer connections than wanted", extra={"wanted": wanted, "possible": most})
    return min(wanted, most) if wanted else min(MAX_CONNECTIONS, most)
