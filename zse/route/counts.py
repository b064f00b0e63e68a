"""What the router tells of itself: counts, and Prometheus' text made of them.

A dozen numbers need no library.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zse.route.fleet import Fleet

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0)
"""Of seconds, for what the router itself takes and for what requests wait."""


class Spread:
    """How values are spread over bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def note(self, value: float) -> None:
        self._counts[bisect_left(BOUNDS, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Return what a histogram of this name says."""
        total = 0
        for bound, count in zip((*BOUNDS, float("inf")), self._counts, strict=True):
            total += count
            told = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{le="{told}"}} {total}'
        yield f"{name}_count {total}"
        yield f"{name}_sum {self._sum:g}"


class Counts:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.held_bytes = 0
        """Of bodies of requests that are in flight."""
        self.ejections = 0
        self.cancelled = 0
        self.broken = 0
        """Answers that ended before they were complete."""
        self.statuses: dict[int, int] = {}
        self.retries: dict[str, int] = {}
        self.blocks = 0
        self.matched_blocks = 0
        self.waited = Spread()
        """Seconds until a replica was chosen."""
        self.first_byte = Spread()
        """Seconds until the head of an answer."""

    def matched(self, num_blocks: int, num_matched: int) -> None:
        self.blocks += num_blocks
        self.matched_blocks += num_matched

    def answered(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def retried(self, reason: str) -> None:
        self.retries[reason] = self.retries.get(reason, 0) + 1

    def render(self, fleet: Fleet) -> bytes:
        """Return the exposition."""
        return ("\n".join(self._lines(fleet)) + "\n").encode()

    def _lines(self, fleet: Fleet) -> Iterator[str]:
        replicas = sorted(fleet.replicas, key=lambda each: each.name)
        yield from _family("in_flight", "gauge", [("", self.in_flight)])
        yield from _family("requests_waiting", "gauge", [("", fleet.num_waiting)])
        yield from _family("held_bytes", "gauge", [("", self.held_bytes)])
        yield from _family("prefix_blocks_remembered", "gauge", [("", fleet.num_remembered)])
        yield from _family("prefix_blocks", "counter", [("", self.blocks)])
        yield from _family("prefix_blocks_matched", "counter", [("", self.matched_blocks)])
        yield from _family("ejections", "counter", [("", self.ejections)])
        yield from _family("requests_cancelled", "counter", [("", self.cancelled)])
        yield from _family("answers_broken", "counter", [("", self.broken)])
        statuses = [(f'{{status="{key}"}}', each) for key, each in sorted(self.statuses.items())]
        yield from _family("requests", "counter", statuses)
        retries = [(f'{{reason="{key}"}}', each) for key, each in sorted(self.retries.items())]
        yield from _family("retries", "counter", retries)
        for name, values in (
            ("replica_ready", [int(each.state == "ready") for each in replicas]),
            ("replica_in_flight", [each.in_flight for each in replicas]),
            ("replica_busyness", [round(each.busyness, 3) for each in replicas]),
        ):
            rows = [(f'{{replica="{r.name}"}}', v) for r, v in zip(replicas, values, strict=True)]
            yield from _family(name, "gauge", rows)
        for name, spread in (("wait", self.waited), ("first_byte", self.first_byte)):
            yield f"# TYPE zse_route_{name}_seconds histogram"
            yield from spread.lines(f"zse_route_{name}_seconds")


def _family(name: str, kind: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    told = f"zse_route_{name}_total" if kind == "counter" else f"zse_route_{name}"
    yield f"# TYPE {told} {kind}"
    for labels, value in rows:
        yield f"{told}{labels} {value}"
