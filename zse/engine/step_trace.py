"""What each step of the engine took, a line of JSON each: where the time of a busy server goes.

    between ... | plan | submit | wait ...... | between
    what the step before made is delivered, requests are taken in | scheduler | runner | device

The times of the host are those of the engine's thread, so what the interpreter's lock cost it is in
them. A step that the host had to wait for was bound by the device, others by the host. Times of the
device come from events in its own stream, where it has some. A server that is not asked for this
keeps no time of it.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Protocol, TextIO, runtime_checkable

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.chunks import ScheduledChunk


@runtime_checkable
class TimedByDevice(Protocol):
    """A step whose device says, once it is done, when it worked."""

    @property
    def idle_seconds(self) -> float:
        """From the end of the step before until this one began."""

    @property
    def busy_seconds(self) -> float:
        """From its begin to its end; launches that came late are in it."""


class StepTrace:
    """Writes lines about steps, in the order in which they end. Driven by the engine's thread.

    Args:
        file: Takes the lines; closed with the trace.
        about: What the first line says.
    """

    def __init__(
        self, file: TextIO, about: str = "", now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._file = file
        self._now = now
        self._ended = self._planning = self._submitting = self._waiting = now()
        self._in_flight: dict[int, dict[str, object]] = {}
        self._began: dict[int, float] = {}
        self._write({"trace": about, "began": self._ended, "clock": "monotonic"})

    def planning(self) -> None:
        """Note that the next step is being planned."""
        self._planning = self._submitting = self._now()

    def planned(self) -> None:
        """Note that it was, and is now handed over."""
        self._submitting = self._now()

    def submitted(self, chunks: Sequence[ScheduledChunk], num_waiting: int) -> None:
        """Note that a step was handed to the runner.

        Args:
            chunks: Of the step.
            num_waiting: Sequences that have no part in it, as they wait for their turn.
        """
        now = self._now()
        self._began[id(chunks)] = self._submitting
        prompts = [chunk.num_tokens for chunk in chunks if chunk.kind == "prefill"]
        self._in_flight[id(chunks)] = {
            "kind": _kind_of(chunks, len(prompts)),
            "rows": sum([chunk.num_tokens for chunk in chunks]) - sum(prompts),
            "prompts": len(prompts),
            "prompt_tokens": sum(prompts),
            "waiting": num_waiting,
            "at": round(now, 6),
            "between_us": _microseconds(self._planning - self._ended),
            "plan_us": _microseconds(self._submitting - self._planning),
            "submit_us": _microseconds(now - self._submitting),
        }

    def waiting(self) -> None:
        """Note that the oldest step in flight is waited for."""
        self._waiting = self._now()

    def ended(self, chunks: Sequence[ScheduledChunk], step: object) -> None:
        """Write what is known of a step whose tokens are here."""
        now = self._now()
        line = self._in_flight.pop(id(chunks), {})
        began = max(self._began.pop(id(chunks), self._ended), self._ended)
        self._ended = now
        line["wait_us"] = _microseconds(now - self._waiting)
        line["step_us"] = _microseconds(now - began)
        if isinstance(step, TimedByDevice):
            line["device_us"] = _microseconds(step.busy_seconds)
            line["idle_us"] = _microseconds(step.idle_seconds)
        self._write(line)

    def flush(self) -> None:
        """Have all lines in the file; for an engine without work."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def open_step_trace(path: str, about: str) -> StepTrace:
    """Return what adds lines to a file, which is made where it is not there.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"the trace of steps cannot be written to {path}: {error.strerror}",
            hint="Name a file in a folder that is there and may be written.",
        ) from error
    return StepTrace(os.fdopen(descriptor, "a", buffering=1 << 16), about)


def _kind_of(chunks: Sequence[ScheduledChunk], num_prompts: int) -> str:
    if num_prompts:
        return "prompts" if num_prompts == len(chunks) else "mixed"
    return "verify" if any(chunk.kind == "verify" for chunk in chunks) else "decode"


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)
