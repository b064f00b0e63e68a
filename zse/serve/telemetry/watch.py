"""One request's work as operators see it: metrics, a span for each of its phases, one log line.

admitted ---queue---> first step ---prefill---> first token ---decode---> end
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from zse.engine.step_clock import StepLog
from zse.records import record
from zse.serve.telemetry.trace import Place, Span, unix_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zse.serve.history import Outcome
    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve.request")

_GAPS_TOGETHER = 32
"""Times between tokens that are noted at once: what is scraped lacks fewer of each answer."""


@record
class Subject:
    """Whose work is watched."""

    request_id: str
    model: str
    key_name: str
    arrival: float
    """On ``time.perf_counter``."""
    place: Place | None = None
    """In a trace; None where it is not traced."""


@record
class Used:
    """What a request has used when it ends."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class RequestWatch:
    """From admission to the end; ``started`` is called by the engine's thread."""

    def __init__(self, state: AppState, subject: Subject) -> None:
        self._state = state
        self._subject = subject
        self._labels = state.metrics.labels_of(subject.model, subject.key_name)
        self._note_gaps = state.metrics.timer("token_gap", *self._labels)
        self._gaps: list[float] = []
        """Those that are not noted yet."""
        self._admitted = time.perf_counter()
        self._started: float | None = None
        self._first: float | None = None
        self._last = self._admitted
        self.steps = StepLog() if subject.place is not None else None
        """The engine's steps for it; None where it is not traced."""

    @property
    def first_token_ms(self) -> float | None:
        """From admission; None where there was no token."""
        return None if self._first is None else (self._first - self._admitted) * 1000

    def started(self) -> None:
        """Note that the engine begins to compute a choice; the first one counts."""
        if self._started is None:
            self._started = time.perf_counter()

    def piece(self) -> None:
        """Note that a piece of an answer has come."""
        self._piece_at(time.perf_counter())

    def pieces(self, moments: Sequence[float]) -> None:
        """Note that pieces of an answer came, each at its moment on ``time.perf_counter``."""
        for moment in moments:
            self._piece_at(moment)

    def _piece_at(self, now: float) -> None:
        if self._first is None:
            self._first = now
            state, subject = self._state, self._subject
            state.metrics.observe("first_token", now - self._admitted, *self._labels)
            own_ms = (now - subject.arrival) * 1000
            state.ledger.mark_first_token(subject.request_id, own_ms)
        else:
            gaps = self._gaps
            gaps.append(now - self._last)
            if len(gaps) == _GAPS_TOGETHER:
                self._note_gaps(gaps)
                gaps.clear()
        self._last = now

    def choice_ended(self, reason: str) -> None:
        self._state.metrics.count("finished", *self._labels, reason)

    def end(self, used: Used, outcome: Outcome) -> float:
        """Tell what the request was; return the seconds from admission to now."""
        now = time.perf_counter()
        seconds = now - self._admitted
        self._count(used, outcome, now)
        if self._subject.place is not None and self._state.tracing is not None:
            self._state.tracing.add(list(self._spans(used, now)))
        LOG.info(
            "generation",
            extra={
                "request_id": self._subject.request_id,
                **({"trace_id": self._subject.place.trace_hex} if self._subject.place else {}),
                "outcome": outcome,
                "prompt_tokens": used.prompt_tokens,
                "completion_tokens": used.completion_tokens,
                "cached_tokens": used.cached_tokens,
                "duration_ms": round(seconds * 1000, 1),
            },
        )
        return seconds

    def _count(self, used: Used, outcome: Outcome, now: float) -> None:
        metrics, labels = self._state.metrics, self._labels
        self._note_gaps(self._gaps)
        metrics.observe("request", now - self._admitted, *labels)
        metrics.observe("prompt_length", used.prompt_tokens, *labels)
        metrics.observe("answer_length", used.completion_tokens, *labels)
        metrics.count("prompt_tokens", *labels, by=used.prompt_tokens)
        metrics.count("generated_tokens", *labels, by=used.completion_tokens)
        metrics.count("cached_tokens", *labels, by=used.cached_tokens)
        if outcome != "completed":
            metrics.count("cancelled", *labels)
            metrics.count("finished", *labels, "abort")
        for key, begin, end in self._phases(now):
            metrics.observe(key, end - begin, *labels)
        if self._first is not None and used.completion_tokens > 1:
            spent = self._last - self._first
            metrics.observe("per_token", spent / (used.completion_tokens - 1), *labels)

    def _phases(self, now: float) -> Iterator[tuple[str, float, float]]:
        """Yield the phases that were reached; the last of them ends with the request."""
        started, first = self._started, self._first
        yield "queue", self._admitted, started or now
        if started is not None:
            yield "prefill", started, first or now
        if first is not None:
            yield "decode", first, max(self._last, first)

    def _spans(self, used: Used, now: float) -> Iterator[Span]:
        """Yield a span for the work, one for each phase, and one for each step of the engine."""
        assert self._subject.place is not None
        work = self._subject.place.child()
        facts: dict[str, str | int] = {
            "gen_ai.operation.name": "generate",
            "gen_ai.request.model": self._subject.model,
            "gen_ai.usage.input_tokens": used.prompt_tokens,
            "gen_ai.usage.output_tokens": used.completion_tokens,
            "zse.cached_tokens": used.cached_tokens,
        }
        log = self.steps or StepLog()
        facts["zse.steps"] = log.num_steps
        yield _span("generate", work, self._admitted, now, facts)
        phases: dict[str, Place] = {}
        for name, begin, end in self._phases(now):
            phases[name] = work.child()
            yield _span(name, phases[name], begin, end)
        for number, step in enumerate(list(log.steps), 1):
            parent = phases.get("prefill" if step.reads_prompt else "decode", work)
            own = {"zse.step": number, "zse.tokens": step.num_tokens}
            yield _span("step", parent.child(), step.began, step.ended, own)


def _span(
    name: str,
    place: Place,
    begin: float,
    end: float,
    attributes: Mapping[str, str | int] | None = None,
) -> Span:
    start_ns = unix_ns(begin)
    return Span(
        name=name,
        place=place,
        start_ns=start_ns,
        # Not by reading the clocks again: a short span would end before it began.
        end_ns=start_ns + int((end - begin) * 1e9),
        attributes=dict(attributes or {}),
    )
