"""What was asked lately: facts of requests and sums of minutes, bounded, in memory. No texts.

A request writes once, when it ends, in the event loop. Whoever looks works out the rest, in any
thread: what is looked at is copied in one piece first, for a queue cannot be walked while it grows.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = Literal["completed", "aborted"]

MAX_FACTS = 1000
MAX_MINUTES = 1440
MINUTE_SECONDS = 60


@record
class RequestFact:
    """One request for tokens that has ended."""

    request_id: str
    model: str
    caller: str
    """Name of the key; empty where none was asked for."""
    ended_at: float
    """Unix seconds."""
    duration_ms: float
    first_token_ms: float | None
    """From the beginning of the work; None where there was no token."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    outcome: Outcome


@dataclass
class Minute:
    """The sums of what ended within one minute."""

    started_at: int
    """Unix seconds; a multiple of 60."""
    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    duration_ms: float = 0.0
    """Of all its requests together."""
    requests_by_model: Counter[str] = field(default_factory=Counter)

    def add(self, fact: RequestFact) -> None:
        self.requests += 1
        self.aborted += fact.outcome == "aborted"
        self.prompt_tokens += fact.prompt_tokens
        self.completion_tokens += fact.completion_tokens
        self.cached_tokens += fact.cached_tokens
        self.duration_ms += fact.duration_ms
        self.requests_by_model[fact.model] += 1


class History:
    """The last requests, and the minutes of a day.

    Args:
        now: Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.started_at = now()
        self._facts: deque[RequestFact] = deque(maxlen=MAX_FACTS)
        self._minutes: deque[Minute] = deque(maxlen=MAX_MINUTES)

    def add(self, fact: RequestFact) -> None:
        self._facts.append(fact)
        started_at = int(fact.ended_at) // MINUTE_SECONDS * MINUTE_SECONDS
        if not self._minutes or self._minutes[-1].started_at < started_at:
            self._minutes.append(Minute(started_at))
        self._minutes[-1].add(fact)  # of a clock that was set back, too

    def latest(self, count: int = MAX_FACTS) -> list[RequestFact]:
        """Return the newest facts, the newest first."""
        facts = list(self._facts)
        return facts[: -count - 1 : -1]

    def minutes(self, count: int) -> list[Minute]:
        """Return the last so many minutes, the current one last; quiet ones are empty."""
        last = int(self.now()) // MINUTE_SECONDS * MINUTE_SECONDS
        known = {minute.started_at: minute for minute in list(self._minutes)}
        starts = range(last - (count - 1) * MINUTE_SECONDS, last + 1, MINUTE_SECONDS)
        return [known.get(start) or Minute(start) for start in starts]
