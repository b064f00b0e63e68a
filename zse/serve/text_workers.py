"""Threads that render templates and tokenize texts, away from the event loop and in fair turns.

A text cannot be tokenized in pieces, so one that is long keeps its thread for seconds: there is a
thread for short texts that none of them ever takes. In each of the two lanes tenants take turns by
the characters they have had worked on, and a tenant's own requests do so among themselves, where
shorter jobs go first of those that wait together.

A thread takes several short jobs at once: between two of them it would wait for its turn at the
interpreter twice, and a crowd's prompts would come one by one to an engine that reads many at once.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from zse.engine.fairness import FairShare
from zse.errors import DeadlineError
from zse.stream.turns import begin_turns, end_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.access.caller import Caller
    from zse.serve.state import AppState

Result = TypeVar("Result")

SHORT_CHARACTERS = 65536
"""Some 30 ms of tokenizing."""
_TOGETHER_CHARACTERS = 8192
"""Of the jobs that a thread takes at once, unless one alone has more: some 4 ms."""
_TURN_SECONDS = 0.001
"""Of the interpreter's threads while texts are read: a thread asks for it several times a text, and
an engine's, which launches a prompt, gives it up after 5 ms else."""
_MAX_REMEMBERED = 1024
"""Requests of a tenant, before those are forgotten whose turn is over."""


class TextWorkers:
    """Both lanes. Belongs to one event loop."""

    def __init__(self, state: AppState | None = None) -> None:  # noqa: ARG002 - a part of it
        self._short = _Lane("text-short")
        self._long = _Lane("text-long")

    async def run(
        self,
        job: Callable[[], Result],
        *,
        num_characters: int,
        request_id: str,
        caller: Caller,
        deadline: float | None = None,
    ) -> Result:
        """Run a job in its turn and return its result.

        Args:
            job: Called in a thread.
            num_characters: Of the texts it works on.
            request_id: Jobs of one request stand behind those of the tenant's others.
            caller: Whose it is.
            deadline: On the loop's clock; a job that has begun by then is not waited for.

        Raises:
            DeadlineError: The deadline came before the result.
        """
        lane = self._short if num_characters <= SHORT_CHARACTERS else self._long
        waiting = lane.put(job, max(num_characters, 1), request_id, caller)
        try:
            async with asyncio.timeout_at(deadline):
                return cast("Result", await waiting)
        except TimeoutError:
            raise DeadlineError("The prompt was not read in the time it was given.") from None

    def close(self) -> None:
        """Let go of the threads; what waits is not run."""
        for lane in (self._short, self._long):
            lane.close()


@dataclass(order=True)
class _Job:
    """A job in its tenant's line."""

    finish: float
    """When it would end were its tenant's requests worked on side by side, in characters."""
    number: int
    run: Callable[[], Any] = field(compare=False)
    size: int = field(compare=False)
    caller: Caller = field(compare=False)
    result: asyncio.Future[Any] = field(compare=False)
    answer: Any = field(default=None, compare=False)
    error: BaseException | None = field(default=None, compare=False)

    def work(self) -> None:
        """Run it in the lane's thread, unless nobody waits for it any more."""
        if self.result.done():
            return
        try:
            self.answer = self.run()
        except BaseException as error:  # noqa: BLE001 - it is raised to who asked
            self.error = error

    def tell(self) -> None:
        """Tell who waits what became of it, in the loop."""
        if self.result.done():
            return
        if self.error is not None:
            self.result.set_exception(self.error)
        else:
            self.result.set_result(self.answer)


class _TenantLine:
    """One tenant's jobs, by the time at which each would end (self-clocked fair queueing)."""

    def __init__(self) -> None:
        self.jobs: list[_Job] = []
        self._clock = 0.0
        self._last_finish: dict[str, float] = {}

    def finish_of(self, request_id: str, size: int) -> float:
        if len(self._last_finish) >= _MAX_REMEMBERED:
            ahead = {key: at for key, at in self._last_finish.items() if at > self._clock}
            self._last_finish = ahead
        finish = max(self._last_finish.get(request_id, 0.0), self._clock) + size
        self._last_finish[request_id] = finish
        return finish

    def pop(self) -> _Job:
        job = heapq.heappop(self.jobs)
        self._clock = job.finish
        return job


class _Lane:
    """One thread and who waits for it. All but the jobs themselves runs in the loop."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._tenants: dict[str, _TenantLine] = {}
        self._share = FairShare()
        self._numbers = itertools.count()
        self._is_busy = False

    def put(
        self, run: Callable[[], Any], size: int, request_id: str, caller: Caller
    ) -> asyncio.Future[Any]:
        """Let a job wait for its turn; cancelling the future takes it out of the line."""
        tenant = caller.tenant
        if tenant not in self._tenants:
            self._tenants[tenant] = _TenantLine()
            self._share.enter(tenant)
        line = self._tenants[tenant]
        result = asyncio.get_running_loop().create_future()
        finish = line.finish_of(request_id, size)
        heapq.heappush(line.jobs, _Job(finish, next(self._numbers), run, size, caller, result))
        if not self._is_busy:
            self._begin_next()
        return result

    def close(self) -> None:
        self._take_turns(is_busy=False)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin_next(self) -> None:
        jobs: list[_Job] = []
        left = _TOGETHER_CHARACTERS
        while left > 0 and (job := self._next(left if jobs else None)) is not None:
            jobs.append(job)
            left -= job.size
        self._take_turns(is_busy=bool(jobs))
        if not jobs:
            return
        done = asyncio.get_running_loop().run_in_executor(self._thread, _work, jobs)
        done.add_done_callback(lambda ended: self._end(jobs, ended))

    def _take_turns(self, *, is_busy: bool) -> None:
        """Have threads take short turns from now on where there is work, else long ones."""
        if is_busy != self._is_busy:
            (begin_turns if is_busy else end_turns)(_TURN_SECONDS)
            self._is_busy = is_busy

    def _next(self, most: int | None) -> _Job | None:
        """Take the job whose turn it is; none where it has more than ``most`` characters."""
        while self._tenants:
            tenant = self._share.first(self._tenants)
            line = self._tenants[tenant]
            if most is not None and line.jobs[0].size > most:
                return None
            job = line.pop()
            if not line.jobs:
                del self._tenants[tenant]
            if not job.result.done():  # else nobody waits for it any more
                self._share.take(tenant)
                self._share.charge(tenant, job.size, job.caller.weight)
                return job
        return None

    def _end(self, jobs: list[_Job], ended: asyncio.Future[None]) -> None:
        for job in jobs:
            if ended.cancelled():
                job.result.cancel()
            job.tell()
        self._begin_next()


def _work(jobs: list[_Job]) -> None:
    for job in jobs:
        job.work()
