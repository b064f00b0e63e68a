"""Metrics that are read when somebody scrapes: of engines, the start, readiness, tokens."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString

from zse.serve.telemetry.families import COLD_START_SECONDS, COUNTERS, FAMILIES, GAUGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.engine.stats import EngineStats
    from zse.serve.fleet.fleet import Fleet
    from zse.serve.ledger import Phase
    from zse.serve.state import AppState
    from zse.serve.telemetry.metrics import Metrics


class StateCollector:
    """Registered like any family."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        state = self._state
        yield GaugeMetricFamily("zse_ready", "1 when ready to serve.", value=float(state.is_ready))
        yield GaugeMetricFamily(
            "zse_in_flight", "Choices admitted and not ended.", value=state.in_flight
        )
        if state.fleet is not None:
            yield from _of_fleet(state, state.fleet)
        yield from _cold_start(state.ledger.phases())
        stats = {entry.model.name: entry.model.engine.stats() for entry in state.models}
        for table, family in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, (text, attribute) in table.items():
                values = family(name, text, labels=["model"])
                for model, snapshot in stats.items():
                    values.add_metric([model], attrgetter(attribute)(snapshot))
                yield values
        yield _caches(stats)
        yield _adapters(state)


def _caches(stats: dict[str, EngineStats]) -> GaugeMetricFamily:
    """Tell the shape of each model's KV cache, by which routers count blocks of prompts."""
    family = GaugeMetricFamily(
        "zse_cache_config_info",
        "Tokens in a block of the KV cache, and blocks; always 1.",
        labels=["model", "block_size", "num_gpu_blocks"],
    )
    for model, each in stats.items():
        family.add_metric([model, str(each.block_size), str(each.kv_blocks_total)], 1.0)
    return family


def _adapters(state: AppState) -> GaugeMetricFamily:
    """Tell which adapters are in memory; a request for one of them waits for nothing more."""
    family = GaugeMetricFamily(
        "zse_lora_requests_info",
        "Adapters in memory, and how many fit; the value is the time.",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    loaded = sorted(name for entry in state.models for name in entry.adapters)
    if loaded or state.options.lora_places:
        most = str(state.options.load.lora.max_loaded)
        family.add_metric([most, ",".join(loaded), ""], time.time())
    return family


class TallyCollector:
    """Tells what has been noted for a row of the table with every token."""

    def __init__(self, metrics: Metrics, key: str) -> None:
        self._metrics = metrics
        self._key = key

    def collect(self) -> Iterator[Any]:
        row = FAMILIES[self._key]
        names = self._metrics.names_of_labels(row)
        family = HistogramMetricFamily(row.name, row.help, labels=names)
        bounds = [*map(floatToGoString, row.bounds), "+Inf"]
        for labels, tally in self._metrics.tallies_of(self._key):
            buckets = list(zip(bounds, tally.cumulative(), strict=True))
            family.add_metric(labels, buckets, sum_value=tally.sum)
        yield family


def _of_fleet(state: AppState, fleet: Fleet) -> Iterator[Any]:
    yield GaugeMetricFamily("zse_models_resident", "Models that are there.", len(state.models))
    yield GaugeMetricFamily(
        "zse_models_waited_for", "Requests that wait for their model.", fleet.num_waiting
    )
    yield GaugeMetricFamily(
        "zse_sleep_level", "0 awake, else the level of sleep.", fleet.sleep.level or 0
    )


def _cold_start(phases: tuple[Phase, ...]) -> Iterator[Any]:
    """Tell the start twice: to the millisecond, and so that many starts can be added up."""
    exact = GaugeMetricFamily(
        "zse_cold_start_milliseconds", "Duration of a phase of the start.", labels=["phase"]
    )
    summed = HistogramMetricFamily(
        "zse_cold_start_seconds",
        "Duration of a phase of the start; a process has one.",
        labels=["phase"],
    )
    for phase in phases:
        exact.add_metric([phase.name], phase.duration_ms)
        seconds = phase.duration_ms / 1000
        buckets = [(f"{bound:g}", float(seconds <= bound)) for bound in COLD_START_SECONDS]
        summed.add_metric([phase.name], [*buckets, ("+Inf", 1.0)], sum_value=seconds)
    yield exact
    yield summed
