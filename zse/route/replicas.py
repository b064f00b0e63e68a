"""What is known of each replica: whether it takes requests, how busy it is, whom it failed.

No clock, no socket: whoever looks at replicas says what was seen and when, so that the simulator of
fleets goes by the same code as the router.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_EJECTED_SHARE = 0.5
"""More than half of the replicas never rest together: then it is not they who fail."""
_MAX_REST_TIMES = 10


class State(StrEnum):
    """What a replica last said of itself."""

    UNKNOWN = "unknown"
    """Nobody has looked yet."""
    READY = "ready"
    UNREADY = "unready"
    """It answers, and takes no requests: it is loading, or leaving."""
    DOWN = "down"


@record
class Load:
    """What a replica says of its work."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of its KV blocks in use, 0 to 1."""
    is_asleep: bool = False
    """Its models have given their memory back, and come with the next request."""


class Replica:
    """One server behind the router.

    Args:
        name: Its address, as people give it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.UNKNOWN
        self.load = Load()
        self.in_flight = 0
        """Requests of this router that it has."""
        self.is_drained = False
        """Whether an operator has taken it out."""
        self.era = 0
        """Grows when it comes back: what it had in its cache is gone."""
        self.num_failures = 0
        """One after the other."""
        self.rests_until = 0.0
        self.down_since = 0.0
        self._num_rests = 0
        self._missed = 0
        self._of_others = 0
        """Requests that it has of others than this router."""

    @property
    def key(self) -> str:
        """Its name in the table of prefixes: another one once its cache is lost."""
        return f"{self.name}#{self.era}"

    @property
    def busyness(self) -> float:
        """Requests that it has, those that only wait twice, for they stand before the next one."""
        return self.in_flight + self._of_others + self.load.waiting + self.load.kv_usage

    @property
    def is_asleep(self) -> bool:
        return self.load.is_asleep

    def takes_requests(self, now: float, *, limit: int = 0) -> bool:
        """Whether the next request may go there."""
        has_room = not limit or self.in_flight < limit
        is_here = self.state is State.READY and not self.is_drained
        return is_here and has_room and now >= self.rests_until

    # --- what was seen ----------------------------------------------------------------------------

    def saw_ready(self, load: Load | None = None) -> None:
        """Note that it takes requests, and what it says of its work."""
        if self.state is not State.READY and self.state is not State.UNKNOWN:
            self.era += 1
        self.state, self._missed = State.READY, 0
        if load is not None:
            self.load = load
            self._of_others = max(0, load.running + load.waiting - self.in_flight)

    def saw_unready(self) -> None:
        """Note that it answers that it takes no requests."""
        self.state, self._missed = State.UNREADY, 0

    def missed(self, now: float, *, dead_after: int) -> bool:
        """Note that it did not answer a look; return whether that makes it down."""
        self._missed += 1
        was_down = self.state is State.DOWN
        if self._missed >= dead_after or self.state is State.UNKNOWN:
            self._go_down(now)
        return self.state is State.DOWN and not was_down

    def saw_refused(self, now: float) -> None:
        """Note that nobody listens there: no look has to be waited for."""
        self._go_down(now)

    def _go_down(self, now: float) -> None:
        if self.state is not State.DOWN:
            self.state, self.down_since = State.DOWN, now

    def succeeded(self) -> None:
        """Note an answer."""
        self.num_failures = 0
        self._num_rests = max(0, self._num_rests - 1) if self._num_rests else 0

    def failed(self) -> None:
        """Note a request that it lost, or whose answer says that it broke."""
        self.num_failures += 1

    def rest(self, now: float, seconds: float) -> None:
        """Give it no requests for a while, longer each time."""
        self._num_rests = min(self._num_rests + 1, _MAX_REST_TIMES)
        self.rests_until = now + seconds * self._num_rests
        self.num_failures = 0


def may_rest(replicas: Iterable[Replica], now: float) -> bool:
    """Whether one more of the replicas may be left out for its failures."""
    there = [each for each in replicas if each.state is State.READY]
    resting = sum(now < each.rests_until for each in there)
    return resting + 1 <= len(there) * MAX_EJECTED_SHARE
