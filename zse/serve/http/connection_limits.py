"""Limits that all connections share: how many there may be, how long one may idle, deadlines.

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

LOG = logging.getLogger("zse.serve.connections")

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


class LimitedConnection(Protocol):
    """A connection, as the limits see it."""

    def enforce_deadlines(self, now: float) -> None:
        """Close if a deadline has passed; ``now`` is the loop's time."""

    def evict(self) -> None:
        """Close at once: it is idle, and its place is needed."""

    def close_if_idle(self) -> None:
        """Close, unless a request has come: it has idled for long, and the server shuts down."""


class ConnectionLimits:
    """Counts connections, evicts idle ones where there are too many, and sweeps for deadlines."""

    def __init__(self, options: HTTPOptions) -> None:
        self.options = options
        self.max_connections = connection_limit(options.max_connections)
        self._counted: set[LimitedConnection] = set()
        self._idle_since: dict[LimitedConnection, float] = {}
        """Idle connections, the longest idle first, and since when: between requests, or before the
        first byte of the first."""
        self._extra: dict[LimitedConnection, None] = {}
        shortest = min(options.read_timeout, options.write_timeout, options.keep_alive_timeout)
        self._sweep_seconds = min(1.0, max(0.02, shortest / _SWEEPS))
        self._sweeper: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._has_slept = False

    def add(self, connection: LimitedConnection) -> bool:
        """Count a new connection; return whether there was room for it.

        Where there is none, the longest idle connection is closed. When none is idle, the new one
        is an extra: it has a moment to prove that it is a health check.
        """
        if self._sweeper is None:
            self._arm()
        has_room = len(self._counted) < self.max_connections
        if not has_room and self._idle_since:
            next(iter(self._idle_since)).evict()
            has_room = True
        (self._counted.add if has_room else self._add_extra)(connection)
        return has_room

    def remove(self, connection: LimitedConnection) -> None:
        """Stop counting a connection; it may have been removed before."""
        self._counted.discard(connection)
        self._extra.pop(connection, None)
        self._idle_since.pop(connection, None)

    def mark_idle(self, connection: LimitedConnection) -> None:
        """Note that a connection waits for a request; its place may be taken from it."""
        if connection in self._counted:
            self._idle_since[connection] = asyncio.get_running_loop().time()

    def close_idle(self, *, since: float) -> None:
        """Close the connections that have been idle since a moment of the loop's clock."""
        for connection, idle_since in list(self._idle_since.items()):
            if idle_since > since:
                break
            connection.close_if_idle()

    def mark_busy(self, connection: LimitedConnection) -> None:
        """Note that a connection has begun with a request."""
        self._idle_since.pop(connection, None)

    def _add_extra(self, connection: LimitedConnection) -> None:
        if len(self._extra) >= MAX_EXTRA:
            oldest = next(iter(self._extra))
            oldest.evict()
            self.remove(oldest)
        self._extra[connection] = None

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
            for connection in [*self._counted, *self._extra]:
                connection.enforce_deadlines(now)
        if self._counted or self._extra:
            self._arm()


def connection_limit(wanted: int) -> int:
    """Return how many connections fit below the limit of open files; 0 wants as many as do."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(files - RESERVED_FILES, 16)
    if wanted > most:
        LOG.warning("fewer connections than wanted", extra={"wanted": wanted, "possible": most})
    return min(wanted, most) if wanted else min(MAX_CONNECTIONS, most)
