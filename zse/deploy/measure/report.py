"""Several starts as one table: the median of each phase, its spread, what it is held against."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from zse.deploy.errors import OverBudgetError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.deploy.measure.start import Start

_TRIES = 5


@record
class Spread:
    """One figure over all starts, in ms."""

    median_ms: float
    min_ms: float
    max_ms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(
            median_ms=round(statistics.median(values), 1),
            min_ms=round(min(values), 1),
            max_ms=round(max(values), 1),
        )


@record
class PhaseReport:
    """A phase of the server's own record."""

    duration: Spread
    end: Spread
    """Since its process began."""


@record
class Report:
    """What is printed."""

    subject: str
    how: str
    starts: int
    milestones: Mapping[str, Spread]
    """Seen from outside, since the command was run."""
    phases: Mapping[str, PhaseReport]
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Phase -> what this machine needs for it whatever the server does."""
    budget_ms: float | None = None
    """For the first token."""

    @property
    def is_within_budget(self) -> bool:
        """Whether the median keeps to the budget; true without one."""
        first = self.milestones["first-token"].median_ms
        return self.budget_ms is None or first <= self.budget_ms

    def check_budget(self) -> None:
        """Refuse a start that is too slow.

        Raises:
            OverBudgetError: The median is over the budget.
        """
        if not self.is_within_budget:
            first = self.milestones["first-token"].median_ms
            raise OverBudgetError(
                f"the first token came after {first:.0f} ms, the budget is {self.budget_ms:g} ms"
            )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_within_budget": self.is_within_budget}

    def to_text(self) -> str:
        plural = "s" if self.starts != 1 else ""
        lines = [f"{self.subject}: {self.starts} cold start{plural} ({self.how})", ""]
        lines.append(f"  {'since the command was run':<28}{'median':>9}   {'spread':<19} budget")
        for name, spread in self.milestones.items():
            has_budget = name == "first-token" and self.budget_ms is not None
            lines.append(_row(name, spread, f"{self.budget_ms:g} ms" if has_budget else ""))
        lines += ["", f"  {'phases, some side by side':<28}{'median':>9}   {'spread':<19} limit"]
        for name, phase in self.phases.items():
            limit = f"{self.limits_ms[name]:.1f} ms" if name in self.limits_ms else ""
            lines.append(_row(name, phase.duration, limit))
        return "\n".join(line.rstrip() for line in lines)


def _row(name: str, spread: Spread, last: str) -> str:
    spread_text = f"{spread.min_ms:.1f} to {spread.max_ms:.1f}"
    return f"  {name:<28}{spread.median_ms:>9.1f}   {spread_text:<19} {last}"


def make_report(
    subject: str,
    how: str,
    starts: Sequence[Start],
    *,
    limits_ms: Mapping[str, float],
    budget_ms: float | None,
) -> Report:
    """Summarize starts; a phase that one of them lacks is left out."""
    milestones = {
        name: Spread.of([start.milestones[name] for start in starts])
        for name in starts[0].milestones
    }
    common = [name for name in starts[0].ledger if all(name in start.ledger for start in starts)]
    phases = {
        name: PhaseReport(
            duration=Spread.of([start.ledger[name].duration_ms for start in starts]),
            end=Spread.of([start.ledger[name].end_ms for start in starts]),
        )
        # A moment has no length of its own: the ones seen from outside stand above.
        for name in common
        if name not in milestones and name != "answering"
    }
    return Report(
        subject=subject,
        how=how,
        starts=len(starts),
        milestones=milestones,
        phases=phases,
        limits_ms=limits_ms,
        budget_ms=budget_ms,
    )


def measure_limits() -> dict[str, float]:
    """Return what this machine needs to start a Python that does nothing."""
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        times.append((time.perf_counter() - began) * 1000)
    return {"interpreter": round(statistics.median(times), 1)}
