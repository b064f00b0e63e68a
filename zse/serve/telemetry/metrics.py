"""Prometheus metrics; its library is imported when somebody asks, off the path to a token."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from zse.serve.telemetry.families import FAMILIES, VLLM_NAMES
from zse.serve.telemetry.tally import Tally
from zse.server_options import TelemetryOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import Counter, Histogram

    from zse.serve.state import AppState
    from zse.serve.telemetry.families import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_LABELS = ("model", "key")
_MOST_EARLY = 4096
"""Writes that wait for the library; a start under more probes than that imports it."""
_LIKE_VLLM = re.compile(
    rf"^((?:# (?:HELP|TYPE) )?)zse_((?:{'|'.join(VLLM_NAMES)})(?:_total|_bucket|_count|_sum)?[ {{])"
)


class Metrics:
    """Everything that is counted."""

    def __init__(self, state: AppState, options: TelemetryOptions | None = None) -> None:
        self._state = state
        self.options = options or TelemetryOptions()
        self._families: _Families | None = None
        self._early: list[Callable[[_Families], None]] = []
        self._tallies: dict[tuple[str, tuple[str, ...]], Tally] = {}
        self._lock = threading.Lock()

    def warm(self) -> _Families:
        """Import the library and make the families; what was counted before is counted now."""
        families = self._families or _Families(self._state, self)  # without the lock
        with self._lock:
            if self._families is None:
                for write in self._early:
                    write(families)
                self._early.clear()
                self._families = families
            return self._families

    def _write(self, write: Callable[[_Families], None]) -> None:
        """Count something: at once, or when the library is there.

        The first requests do not wait for the import, which takes as long as a few tokens.
        """
        with self._lock:
            if self._families is None and len(self._early) < _MOST_EARLY:
                self._early.append(write)
                return
        write(self._families or self.warm())

    def count(self, key: str, *labels: str, by: int = 1) -> None:
        """Add to a counter of the table; labels are few patterns, never what clients write."""
        self._write(lambda to: to.child(key, labels).inc(by))

    def observe(self, key: str, value: float, *labels: str) -> None:
        """Note one value in a histogram of the table."""
        self._write(lambda to: to.child(key, labels).observe(value))

    def timer(self, key: str, *labels: str) -> Callable[[Sequence[float]], None]:
        """Return what notes values of a row that is tallied; this is called in the loop."""
        tally = self._tallies.get((key, labels))
        if tally is None:
            tally = self._tallies[key, labels] = Tally(FAMILIES[key].bounds)
        return tally.note

    def tallies_of(self, key: str) -> list[tuple[tuple[str, ...], Tally]]:
        """Return what has been noted for a row of the table, by labels."""
        return [(labels, tally) for (of, labels), tally in [*self._tallies.items()] if of == key]

    def labels_of(self, model: str, key_name: str) -> tuple[str, ...]:
        """Return the labels of a request's metrics."""
        return (model, key_name) if self.options.metrics_by_key else (model,)

    def names_of_labels(self, row: Family) -> tuple[str, ...]:
        """Return what the labels of a row of the table are called."""
        of_request = REQUEST_LABELS if self.options.metrics_by_key else REQUEST_LABELS[:1]
        return (*(of_request if row.is_of_request else ()), *row.labels)

    def render(self) -> bytes:
        """Return the exposition, with vLLM's names too where they are asked for."""
        from prometheus_client import generate_latest

        text = generate_latest(self.warm().registry)
        return text if self.options.metrics_names == "zse" else text + _as_vllm(text)


def _as_vllm(exposition: bytes) -> bytes:
    """Return the lines that vLLM has too, as it writes them."""
    lines = []
    for line in exposition.decode().splitlines():
        renamed, count = _LIKE_VLLM.subn(r"\1vllm:\2", line)
        if count:
            lines.append(renamed.replace('model="', 'model_name="', 1))
    return ("\n".join(lines) + "\n").encode()


class _Families:
    """The families on a registry of their own."""

    def __init__(self, state: AppState, metrics: Metrics) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        from zse.serve.telemetry.collector import StateCollector, TallyCollector

        self.registry = registry = CollectorRegistry()
        self._made: dict[str, Counter | Histogram] = {}
        for key, row in FAMILIES.items():
            labels = metrics.names_of_labels(row)
            if row.is_tallied:
                registry.register(TallyCollector(metrics, key))
            elif row.bounds:
                self._made[key] = Histogram(
                    row.name, row.help, labels, buckets=row.bounds, registry=registry
                )
            else:
                self._made[key] = Counter(row.name, row.help, labels, registry=registry)
        registry.register(StateCollector(state))

    def child(self, key: str, labels: tuple[str, ...]) -> Any:
        family = self._made[key]
        return family.labels(*labels) if labels else family
