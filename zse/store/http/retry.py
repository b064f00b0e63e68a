"""How long to wait between attempts: longer each time, never all clients at once, as asked."""

from __future__ import annotations

import calendar
import math
import random
import time
from threading import Event
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
ATTEMPTS = 5
FIRST_ATTEMPTS = 2
"""Attempts at a server that never answered: whoever has no network is to know soon."""
BUSY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
MAX_PAUSE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.2
_SLICE_SECONDS = 0.1
_DATE = "%a, %d %b %Y %H:%M:%S GMT"


class BusyServerError(Exception):
    """The server asks to try again, perhaps after a time. Never leaves the client that waits."""

    def __init__(self, message: str, retry_after: str | None = None, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.pause_seconds = retry_after_seconds(retry_after)


class UnreachableError(OSError):
    """There is no connection to a server that never answered before."""


RETRIED: tuple[type[Exception], ...] = (OSError, BusyServerError)


def retry_after_seconds(header: str | None, *, now: float | None = None) -> float:
    """Return the seconds that a Retry-After header asks for, at most a minute; 0 without one."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            moment = calendar.timegm(time.strptime(text, _DATE))
        except ValueError:
            return 0.0
        seconds = moment - (time.time() if now is None else now)
    return min(max(seconds, 0.0), MAX_PAUSE_SECONDS)


def doubled_seconds(attempt: int, *, first_seconds: float = _FIRST_PAUSE_SECONDS) -> float:
    """Return the pause after the given number of failures: doubling, at most a minute."""
    return float(min(first_seconds * 2.0 ** (attempt - 1), MAX_PAUSE_SECONDS))


def backoff_seconds(attempt: int) -> float:
    """Return the same with up to half taken off, so that clients do not come back together."""
    return doubled_seconds(attempt) * random.uniform(0.5, 1.0)


def pause(attempt: int, problem: Exception | None, stop: Event) -> None:
    """Wait before another attempt, unless ``stop`` is set meanwhile."""
    seconds = backoff_seconds(attempt)
    if isinstance(problem, BusyServerError):
        seconds = max(seconds, problem.pause_seconds)
    for _ in range(math.ceil(seconds / _SLICE_SECONDS)):
        if stop.is_set():
            return
        time.sleep(min(_SLICE_SECONDS, seconds))


def patiently(
    action: Callable[[], _Result],
    *,
    retried: tuple[type[Exception], ...] = RETRIED,
    stop: Event | None = None,
) -> _Result:
    """Return what ``action`` returns, tried again while it raises one of ``retried``.

    What the last attempt raises is let through, what the second one raises at a server that cannot
    be reached, and what any raises once ``stop`` is set.
    """
    stop = stop or Event()
    for attempt in range(1, ATTEMPTS):
        try:
            return action()
        except retried as error:
            if isinstance(error, UnreachableError) and attempt >= FIRST_ATTEMPTS:
                raise
            pause(attempt, error, stop)
            if stop.is_set():
                raise
    return action()
