"""The cold-start ledger: when each phase of the start ended, in ms since the process began.

``first-token`` is what the first client would have waited had it asked at once: the ms until ready,
and its own request's ms from arrival to first token. How long nobody asked is no part of it.

It is written by the threads of the boot and read by handlers; a phase is written once, so no lock
is needed beyond the interpreter's own. The same numbers go to the log, metrics and
``Server-Timing``.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOST_NAMESPACE = "pid:[4026531836]"
"""The kernel's own number of the PID namespace that a machine begins with."""
_LEAST_CONTAINER_MS = 10.0
"""A tick of the kernel's clock: what it tells less of is nothing."""
_MOST_CONTAINER_MS = 300_000.0


@record
class Phase:
    """One phase of the start, in ms since the process began."""

    name: str
    start_ms: float
    end_ms: float

    @property
    def duration_ms(self) -> float:
        return self.end_ms - self.start_ms


@record
class Work:
    """What a start is busy with, where it is known how much of it there is."""

    stage: str
    """``fetch``, ``convert`` or ``weights``."""
    share: float
    """Done of all, 0 to 1."""
    seconds_left: float


class Ledger:
    """Phases of one process start, and how far it is.

    Args:
        start_time_ns: CLOCK_REALTIME when the launcher started the process; 0 asks the kernel.
        container_start_time_ns: The same of the container; 0 asks the kernel, where it can tell.
            None where what begins is no process, but a model in one.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        start_time_ns: int = 0,
        container_start_time_ns: int | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._age_at_birth_ms = process_age_ms(start_time_ns)
        self._clock = clock
        self._birth = clock()
        self._phases: dict[str, Phase] = {}
        self._first_request_id = ""
        self._stage, self._stage_began = "", 0.0
        self._bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)
        if container_start_time_ns is not None:
            before_ms = container_age_ms(container_start_time_ns) - self._age_at_birth_ms
            if before_ms >= _LEAST_CONTAINER_MS:
                self._record("container", -before_ms, 0.0)
        # Everything before this object existed: the interpreter, and the imports up to here.
        self._record("interpreter", 0.0, self._age_at_birth_ms)

    @classmethod
    def of_model(cls) -> Ledger:
        """Return the ledger of a model that begins now, in a process that answers already."""
        ledger = cls(time.time_ns())
        ledger._age_at_birth_ms = 0.0
        ledger._phases.clear()
        return ledger

    def now_ms(self) -> float:
        """Milliseconds since the process began."""
        return self._age_at_birth_ms + (self._clock() - self._birth) * 1000

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block of the start under ``name``."""
        start_ms = self.now_ms()
        yield
        self._record(name, start_ms, self.now_ms())

    def note(self, name: str, began: float, ended: float) -> None:
        """Record what was done before anybody could tell this ledger, by its clock."""
        first_ms = self._age_at_birth_ms - self._birth * 1000
        self._record(name, first_ms + began * 1000, first_ms + ended * 1000)

    def mark(self, name: str) -> None:
        """Record a moment, such as ``ready``; only the first call for a name counts."""
        if name not in self._phases:
            self._record(name, 0.0, self.now_ms())

    def mark_first_token(self, request_id: str, request_ms: float) -> None:
        """Record the first token that was ever generated; only the first call counts.

        It came ``request_ms`` after its request, whose answer alone reports it in its header.
        """
        if "first-token" not in self._phases:
            ready = self._phases.get("ready")
            ready_ms = ready.end_ms if ready else self.now_ms() - request_ms
            self._first_request_id = request_id
            self._record("first-token", 0.0, ready_ms + request_ms)

    def report(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Say how far the work is that the start is busy with."""
        self.watch(stage, lambda: (done_bytes, total_bytes))

    def watch(self, stage: str, num_bytes: Callable[[], tuple[int, int]]) -> None:
        """Ask ``num_bytes`` for the bytes done and the bytes in all whenever somebody asks here."""
        if stage != self._stage:
            self._stage, self._stage_began = stage, self._clock()
        self._bytes = num_bytes

    def work(self) -> Work | None:
        """Return how far the work is; None while there is none whose size is known."""
        done_bytes, total_bytes = self._bytes()
        if not 0 < done_bytes < total_bytes:
            return None
        share = done_bytes / total_bytes
        spent_seconds = self._clock() - self._stage_began
        return Work(
            stage=self._stage, share=share, seconds_left=spent_seconds * (1 - share) / share
        )

    def _record(self, name: str, start_ms: float, end_ms: float) -> None:
        self._phases[name] = Phase(name=name, start_ms=start_ms, end_ms=end_ms)

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._phases.values())

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return ``{phase: {"start_ms", "end_ms", "duration_ms"}}``."""
        return {
            phase.name: {
                "start_ms": round(phase.start_ms, 1),
                "end_ms": round(phase.end_ms, 1),
                "duration_ms": round(phase.duration_ms, 1),
            }
            for phase in self.phases()
        }

    def server_timing(self, request_id: str) -> str:
        """Return the value of a ``Server-Timing`` header: ``name;dur=ms``.

        ``cold-first-token`` stands in the answer that waited for it, and in no other.
        """
        hidden = "" if request_id == self._first_request_id else "first-token"
        return ", ".join(
            f"cold-{phase.name};dur={phase.duration_ms:.1f}"
            for phase in self.phases()
            if phase.name != hidden
        )


def container_age_ms(container_start_time_ns: int = 0, *, proc: Path = Path("/proc")) -> float:
    """Return how long the container of this process has existed, in ms; 0 where nobody says.

    That is the age of the first process of its PID namespace, where that has started this one: in
    a container that has served before, or runs other things, it would say nothing of this start.

    Args:
        container_start_time_ns: CLOCK_REALTIME of its start, where the platform says it.
        proc: Where the kernel shows processes.
    """
    if container_start_time_ns:
        return max(0.0, (time.time_ns() - container_start_time_ns) / 1e6)
    try:
        is_host = (proc / "self/ns/pid").readlink().name == _HOST_NAMESPACE
        parent = int((proc / "self/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    if is_host or parent != 1:
        return 0.0
    age_ms = _age_ms(proc / "1/stat")
    return age_ms if age_ms <= _MOST_CONTAINER_MS else 0.0


def process_age_ms(start_time_ns: int = 0) -> float:
    """Return how long this process has existed, in ms.

    Args:
        start_time_ns: CLOCK_REALTIME of the start when a launcher measured it; 0 reads the kernel's
            record, whose step is a clock tick (usually 10 ms).
    """
    if start_time_ns:
        return max(0.0, (time.time_ns() - start_time_ns) / 1e6)
    return _age_ms(Path("/proc/self/stat"))


def _age_ms(stat: Path) -> float:
    """Return the age of a process by what the kernel shows of it, in ms; 0 where it does not."""
    try:
        text = stat.read_text()
        # The command name may hold spaces and parentheses; fields are counted after the last one.
        ticks = int(text.rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    # Inside some sandboxes the two clocks share no origin; a nonsense age is worse than none.
    return age_s * 1000 if 0 <= age_s < 86400 else 0.0
