"""Prometheus metrics. The client library is imported when somebody asks, off the path to a token.

Names follow vLLM's under our own prefix, so that existing dashboards need one substitution.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.serve.state import AppState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5)

_MOST_EARLY = 4096
"""Counts that wait for the library; a start under more probes than that imports it."""

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
    """Everything that is counted.

    Args:
        state: Where gauges are read at scrape time.
    """

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
        if self._families is None and self._keep(write):
            return
        write(self.warm())

    def _keep(self, write: Callable[[_Families], None]) -> bool:
        """Keep a count until the library is there; False when it is, or too many are kept."""
        with self._lock:
            if self._families is not None or len(self._early) >= _MOST_EARLY:
                return False
            self._early.append(write)
            return True

    def count_response(self, route: str, status: int) -> None:
        """Count one HTTP response; ``route`` is the pattern, never the raw path."""
        self._write(lambda to: to.requests.labels(route, str(status)).inc())

    def count_rejection(self) -> None:
        self._write(lambda to: to.rejections.inc())

    def observe_first_token(self, seconds: float) -> None:
        """Record the time from a request's arrival to its first token."""
        self._write(lambda to: to.first_token.observe(seconds))

    def observe_token_gap(self, seconds: float) -> None:
        """Record the time between two pieces of an answer."""
        self._write(lambda to: to.token_gap.observe(seconds))

    def observe_request(
        self, seconds: float, prompt_tokens: int, generated_tokens: int, cached_tokens: int
    ) -> None:
        """Record one request that ended, also when it was cut short."""

        def write(to: _Families) -> None:
            to.whole_request.observe(seconds)
            to.prompt_tokens.inc(prompt_tokens)
            to.generated_tokens.inc(generated_tokens)
            to.cached_tokens.inc(cached_tokens)

        self._write(write)

    def count_finish(self, reason: str) -> None:
        """Count one choice by the reason it ended: stop, length, tool_calls or abort."""
        self._write(lambda to: to.finished.labels(reason).inc())

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self.warm().registry)


class _Families:
    """The families on a registry of their own."""

    def __init__(self, state: AppState) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "zse_requests", "HTTP responses.", ["route", "status"], registry=registry
        )
        self.rejections = Counter(
            "zse_admission_rejections", "Requests that met a full queue.", registry=registry
        )
        self.finished = Counter(
            "zse_request_success", "Choices that ended.", ["finished_reason"], registry=registry
        )
        self.prompt_tokens = Counter("zse_prompt_tokens", "Prompt tokens.", registry=registry)
        self.generated_tokens = Counter(
            "zse_generation_tokens", "Generated tokens.", registry=registry
        )
        self.cached_tokens = Counter(
            "zse_cached_prompt_tokens", "Prompt tokens served from the cache.", registry=registry
        )
        self.first_token = Histogram(
            "zse_time_to_first_token_seconds",
            "Arrival to first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.token_gap = Histogram(
            "zse_inter_token_latency_seconds",
            "Time between pieces of an answer.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.whole_request = Histogram(
            "zse_e2e_request_latency_seconds",
            "Arrival to end.",
            buckets=_SECONDS,
            registry=registry,
        )
        registry.register(_StateCollector(state))


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
        if state.model is None:
            return
        stats = state.model.engine.stats()
        for name, (text, attribute) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats, attribute))
        for name, (text, attribute) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats, attribute))
