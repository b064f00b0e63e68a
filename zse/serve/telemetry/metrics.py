"""Prometheus metrics. The client library is imported when somebody asks, off the path to a token.

Names follow vLLM's under our own prefix, so that existing dashboards need one substitution.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Counter

    from zse.serve.state import AppState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5)

_MOST_EARLY = 4096
"""Counts that wait for the library; a start under more probes than that imports it."""

# key -> (name, help, labels)
_COUNTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "responses": ("zse_requests", "HTTP responses.", ("route", "status")),
    "rejections": ("zse_admission_rejections", "Requests that met a full queue.", ()),
    "finished": ("zse_request_success", "Choices that ended.", ("finished_reason",)),
    "prompt_tokens": ("zse_prompt_tokens", "Prompt tokens.", ()),
    "generated_tokens": ("zse_generation_tokens", "Generated tokens.", ()),
    "cached_tokens": ("zse_cached_prompt_tokens", "Prompt tokens served from the cache.", ()),
}
# key -> (name, help, bounds in seconds)
_TIMED = {
    "first_token": ("zse_time_to_first_token_seconds", "Arrival to first token.", _SECONDS),
    "token_gap": (
        "zse_inter_token_latency_seconds",
        "Time between pieces of an answer.",
        _TOKEN_SECONDS,
    ),
    "request": ("zse_e2e_request_latency_seconds", "Arrival to end.", _SECONDS),
}
# name -> (help, attribute of EngineStats)
_GAUGES = {
    "zse_num_requests_running": ("Choices that the engine is running.", "num_running"),
    "zse_num_requests_waiting": ("Choices that wait for the engine.", "num_waiting"),
    "zse_kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1.", "kv_usage"),
    "zse_kv_blocks_total": ("KV blocks in the pool.", "kv_blocks_total"),
}
_COUNTERS = {
    "zse_prefix_cache_queries": ("Prompt tokens looked up for reuse.", "prefix_query_tokens"),
    "zse_prefix_cache_hits": ("Prompt tokens whose KV was reused.", "prefix_hit_tokens"),
    "zse_num_preemptions": ("Sequences that lost their KV to others.", "preemptions"),
    "zse_engine_steps": ("Steps of the engine.", "steps"),
    "zse_computed_tokens": ("Tokens run through the model.", "computed_tokens"),
}


class Metrics:
    """Everything that is counted."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._families: _Families | None = None
        self._early: list[Callable[[_Families], None]] = []
        self._lock = threading.Lock()

    def warm(self) -> _Families:
        """Import the library and make the families; what was counted before is counted now."""
        families = self._families or _Families(self._state)  # the lock is not held for the import
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
        self._write(lambda to: to.counter(key, *labels).inc(by))

    def observe(self, key: str, seconds: float) -> None:
        """Note how long something took, in a histogram of the table."""
        self._write(lambda to: to.timed[key].observe(seconds))

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self.warm().registry)


class _Families:
    """The families on a registry of their own."""

    def __init__(self, state: AppState) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = registry = CollectorRegistry()
        self.counted = {
            key: Counter(name, text, labels, registry=registry)
            for key, (name, text, labels) in _COUNTED.items()
        }
        self.timed = {
            key: Histogram(name, text, buckets=bounds, registry=registry)
            for key, (name, text, bounds) in _TIMED.items()
        }
        registry.register(_StateCollector(state))

    def counter(self, key: str, *labels: str) -> Counter:
        return self.counted[key].labels(*labels) if labels else self.counted[key]


class _StateCollector:
    """Reads the engine, the ledger and readiness when somebody scrapes."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state = self._state
        yield GaugeMetricFamily("zse_ready", "1 when ready to serve.", value=float(state.is_ready))
        yield GaugeMetricFamily(
            "zse_in_flight", "Choices admitted and not ended.", value=state.in_flight
        )
        cold = GaugeMetricFamily(
            "zse_cold_start_milliseconds", "Duration of a phase of the start.", labels=["phase"]
        )
        for phase in state.ledger.phases():
            cold.add_metric([phase.name], phase.duration_ms)
        yield cold
        stats = {entry.model.name: entry.model.engine.stats() for entry in state.models}
        for table, family in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for name, (text, attribute) in table.items():
                values = family(name, text, labels=["model"])
                for model, snapshot in stats.items():
                    values.add_metric([model], getattr(snapshot, attribute))
                yield values
