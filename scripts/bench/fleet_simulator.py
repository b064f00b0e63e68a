"""A discrete event simulation of a fleet: GPUs, replicas on them, requests that wait and run.

Replicas share their GPU among requests as measured curves say: prompts one after the other, before
which decoding rests; then a token for each request a step, and a step takes as long as its batch
makes it. That is processor sharing, so each replica has a clock in tokens (``_tokens``) that runs
at the speed of its batch, and a request ends when that clock has gone on by its answer: an event
costs a logarithm, not a walk over what runs.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_policies import Seen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from zse.route.choice import choose

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleet_curves import Curves
    from fleet_policies import Policy
    from fleet_traces import Request

STARTED, FIRST_TOKEN, FINISHED, IDLE, FETCHED = range(5)


class Replica:
    """A model on a GPU."""

    is_asleep = False

    def __init__(self, model: int, number: int) -> None:
        self.model = model
        self.key = str(number)
        self.is_ready = False
        self.ordered_at = 0.0
        self.num_running = 0
        """Prompts that are being read too."""
        self.idle_since = 0.0
        self.version = 0
        """Grows when what was foreseen of its next end is no longer true."""
        self._decoding: list[tuple[float, int, Request]] = []
        self._tokens = 0.0
        self._at = 0.0
        self._prompts_until = 0.0

    @property
    def busyness(self) -> float:
        return float(self.num_running)

    def advance(self, now: float, curves: Curves) -> None:
        """Let the clock of tokens run to ``now``."""
        if self._decoding:
            begun = max(self._at, min(self._prompts_until, now))
            self._tokens += (now - begun) / curves.step_seconds(len(self._decoding))
        self._at = now

    def read_prompt(self, now: float, seconds: float) -> float:
        """Return when a prompt that takes so long will be read."""
        self._prompts_until = max(now, self._prompts_until) + seconds
        return self._prompts_until

    def decode(self, request: Request, number: int) -> None:
        heapq.heappush(self._decoding, (self._tokens + request.output_tokens, number, request))

    def next_end(self, curves: Curves) -> float | None:
        """Return when the next answer ends, if nothing else happens."""
        if not self._decoding:
            return None
        left = max(0.0, self._decoding[0][0] - self._tokens)
        begun = max(self._at, self._prompts_until)
        return begun + left * curves.step_seconds(len(self._decoding))

    def end_first(self) -> Request:
        return heapq.heappop(self._decoding)[2]


class Store:
    """Where weights come from: all who fetch share what it gives, each as much."""

    def __init__(self, bytes_per_second: float, weights_bytes: int) -> None:
        self._rate, self._size = bytes_per_second, weights_bytes
        self._fetching: deque[tuple[float, Replica]] = deque()
        self._given = 0.0
        """Bytes to whoever fetched all the time."""
        self._at = 0.0
        self.version = 0

    def advance(self, now: float) -> None:
        if self._fetching:
            self._given += (now - self._at) * self._rate / len(self._fetching)
        self._at = now

    def begin(self, replica: Replica) -> None:
        self._fetching.append((self._given + self._size, replica))

    def next_end(self) -> float | None:
        """Return when the first has all of it: whoever began first, since all are as large."""
        if not self._fetching:
            return None
        left = max(0.0, self._fetching[0][0] - self._given)
        return self._at + left * len(self._fetching) / self._rate

    def end_first(self) -> Replica:
        return self._fetching.popleft()[1]


@dataclass
class Model:
    """What is known of one model."""

    replicas: list[Replica] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    num_ordered: int = 0
    """Replicas that wait for a GPU."""

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + sum(each.num_running for each in self.replicas)


@dataclass
class Result:
    """What came of a trace."""

    arrived: int = 0
    finished: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    waited_seconds: list[float] = field(default_factory=list)
    """Until a replica took the request."""
    gpu_seconds: float = 0.0
    """From asking for a GPU to giving it back."""
    starts: int = 0
    swaps: int = 0
    most_gpus: int = 0
    most_starting: int = 0
    waited_for_gpu: int = 0
    """Starts that found all GPUs taken."""
    seconds: float = 0.0

    def percentile(self, share: float) -> float:
        values = sorted(self.first_token_seconds)
        return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Simulation:
    """Runs one trace.

    Args:
        gpus: That there are; 0 for as many as are wanted.
    """

    def __init__(self, curves: Curves, policy: Policy, *, gpus: int = 0, seed: int = 0) -> None:
        self.result = Result()
        self._curves, self._policy, self._gpus = curves, policy, gpus
        self._lot = random.Random(f"fleet/{seed}")
        self._models: dict[int, Model] = {}
        self._events: list[tuple[float, int, int, object]] = []
        self._order, self._numbers = count(), count()
        self._num_gpus = self._num_starting = 0
        self._line: deque[int] = deque()
        """Models that wait for a GPU, one entry a replica."""
        self._resting: dict[Replica, None] = {}
        """Idle replicas, the longest first."""
        rate = curves.origin_bytes_per_second
        self._store = Store(rate, curves.weights_bytes) if rate else None
        self._seconds = 0.0

    def run(self, trace: Iterable[Request], *, models: int, seconds: float) -> Result:
        """Return what came of it; what is under way in the end is brought to its end."""
        self._seconds = seconds
        for model in range(models if self._policy.at_least else 0):
            for _ in range(self._policy.at_least):
                self._take_gpu(model, 0.0, is_there=True)
        requests = iter(trace)
        upcoming = next(requests, None)
        while self._events or upcoming is not None:
            if upcoming is not None and (not self._events or upcoming.at <= self._events[0][0]):
                self._arrive(upcoming)
                upcoming = next(requests, None)
                continue
            now, _, kind, what = heapq.heappop(self._events)
            self._happen(now, kind, what)
        self._close()
        return self.result

    # --- events ---------------------------------------------------------------------------------

    def _arrive(self, request: Request) -> None:
        self.result.arrived += 1
        model = self._models.setdefault(request.model, Model())
        model.waiting.append(request)
        self._hand_out(request.model, request.at)
        self._order_replicas(request.model, request.at)

    def _happen(self, now: float, kind: int, what: object) -> None:
        if kind == STARTED:
            assert isinstance(what, Replica)
            self._num_starting -= 1
            what.is_ready = True
            what.idle_since = now
            self._hand_out(what.model, now)
            self._rest_if_idle(what, now)
        elif kind == FIRST_TOKEN:
            replica, request = what  # type: ignore[misc]
            replica.advance(now, self._curves)
            self.result.first_token_seconds.append(now - request.at)
            replica.decode(request, next(self._numbers))
            self._foresee(replica)
        elif kind == FINISHED:
            replica, version = what  # type: ignore[misc]
            if version == replica.version:
                self._finish(replica, now)
        elif kind == FETCHED:
            assert self._store is not None
            if what == self._store.version:
                self._store.advance(now)
                self._push(now + self._start_seconds(), STARTED, self._store.end_first())
                self._foresee_fetch()
        elif kind == IDLE:
            replica, since = what  # type: ignore[misc]
            if replica in self._resting and replica.idle_since == since:
                self._let_go(replica, now)

    def _finish(self, replica: Replica, now: float) -> None:
        replica.advance(now, self._curves)
        replica.end_first()
        replica.num_running -= 1
        self.result.finished += 1
        self._foresee(replica)
        self._hand_out(replica.model, now)
        self._rest_if_idle(replica, now)

    # --- requests to replicas ---------------------------------------------------------------------

    def _hand_out(self, number: int, now: float) -> None:
        model = self._models[number]
        while model.waiting:
            able = [
                r for r in model.replicas if r.is_ready and r.num_running < self._curves.max_batch
            ]
            if not able:
                return
            found = choose(able, num_blocks=0, matched={}, draw=self._lot.randrange)
            self._begin(able[found.index], model.waiting.popleft(), now)

    def _begin(self, replica: Replica, request: Request, now: float) -> None:
        self._resting.pop(replica, None)
        self.result.waited_seconds.append(now - request.at)
        replica.advance(now, self._curves)
        replica.num_running += 1
        reading = request.prompt_tokens / self._curves.prompt_tokens_per_second
        first = replica.read_prompt(now, reading) + self._curves.step_seconds(1)
        self._push(first, FIRST_TOKEN, (replica, request))
        self._foresee(replica)

    def _foresee(self, replica: Replica) -> None:
        replica.version += 1
        end = replica.next_end(self._curves)
        if end is not None:
            self._push(end, FINISHED, (replica, replica.version))

    # --- replicas to GPUs -------------------------------------------------------------------------

    def _order_replicas(self, number: int, now: float) -> None:
        model = self._models[number]
        there = len(model.replicas) + model.num_ordered
        seen = Seen(in_flight=model.in_flight, replicas=there)
        for _ in range(self._policy.wanted(seen) - there):
            model.num_ordered += 1
            self._line.append(number)
            if self._gpus and self._num_gpus >= self._gpus and not self._make_room(now):
                self.result.waited_for_gpu += 1
            self._serve_line(now)

    def _make_room(self, now: float) -> bool:
        """Let the replica go that has rested longest; return whether there was one."""
        if not self._resting or self._policy.at_least:
            return False
        self._let_go(next(iter(self._resting)), now)
        return True

    def _serve_line(self, now: float) -> None:
        while self._line and not (self._gpus and self._num_gpus >= self._gpus):
            number = self._line.popleft()
            self._models[number].num_ordered -= 1
            self._take_gpu(number, now)

    def _take_gpu(self, number: int, now: float, *, is_there: bool = False) -> None:
        replica = Replica(number, next(self._numbers))
        replica.ordered_at = now
        self._models.setdefault(number, Model()).replicas.append(replica)
        self._num_gpus += 1
        self._num_starting += 1
        self.result.most_gpus = max(self.result.most_gpus, self._num_gpus)
        self.result.most_starting = max(self.result.most_starting, self._num_starting)
        if is_there:
            self._push(now, STARTED, replica)
        elif self._store is None:
            self._push(now + self._start_seconds(), STARTED, replica)
        else:
            self._store.advance(now)
            self._store.begin(replica)
            self._foresee_fetch()

    def _start_seconds(self) -> float:
        """Return how long a start takes, its weights apart where they come from a store."""
        curves = self._curves
        if self._policy.shares_gpus:
            self.result.swaps += 1
            return self._lot.choice(curves.swap_seconds)
        self.result.starts += 1
        return curves.platform_seconds + self._lot.choice(curves.start_seconds)

    def _foresee_fetch(self) -> None:
        assert self._store is not None
        self._store.version += 1
        end = self._store.next_end()
        if end is not None:
            self._push(end, FETCHED, self._store.version)

    def _rest_if_idle(self, replica: Replica, now: float) -> None:
        if replica.num_running or not replica.is_ready:
            return
        replica.idle_since = now
        self._resting[replica] = None
        if self._policy.idle_seconds < float("inf"):
            self._push(now + self._policy.idle_seconds, IDLE, (replica, now))
        if self._line and not self._policy.at_least:
            self._make_room(now)
            self._serve_line(now)

    def _let_go(self, replica: Replica, now: float) -> None:
        del self._resting[replica]
        self._models[replica.model].replicas.remove(replica)
        self._num_gpus -= 1
        self._pay(replica, now)
        self._serve_line(now)

    def _pay(self, replica: Replica, now: float) -> None:
        """Count a GPU, within the trace: behind its end nobody comes, and all subjects are even."""
        self.result.gpu_seconds += max(0.0, min(now, self._seconds) - replica.ordered_at)

    def _close(self) -> None:
        for model in self._models.values():
            for replica in model.replicas:
                self._pay(replica, self._seconds)
        self.result.seconds = self._seconds
        if self._policy.shares_gpus and self._gpus:
            self.result.gpu_seconds = self._gpus * self._seconds

    def _push(self, at: float, kind: int, what: object) -> None:
        heapq.heappush(self._events, (at, next(self._order), kind, what))
