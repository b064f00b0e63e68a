"""Write infra/grafana/zse.json: the dashboard, made of the table below; --check only compares."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).parents[1] / "infra" / "grafana" / "zse.json"
COLUMNS, WIDTH, HEIGHT = 24, 8, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MODEL = 'model=~"$model"'
QUANTILES = ("0.5", "0.95", "0.99")


class Panel(NamedTuple):
    """One graph."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Legend and PromQL."""
    description: str = ""


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    rate = f"sum by (le) (rate({name}_bucket{{{MODEL}}}[$__rate_interval]))"
    return tuple((f"p{float(q) * 100:g}", f"histogram_quantile({q}, {rate})") for q in QUANTILES)


def rate(name: str, by: str = "", labels: str = MODEL) -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({name}{{{labels}}}[$__rate_interval]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "What clients feel": (
        Panel("Time to first token", "s", quantiles("zse_time_to_first_token_seconds")),
        Panel("Time between tokens", "s", quantiles("zse_inter_token_latency_seconds")),
        Panel("Whole requests", "s", quantiles("zse_e2e_request_latency_seconds")),
        Panel(
            "Answers by status",
            "reqps",
            (("{{status}}", rate("zse_requests_total", "status", 'job=~".*"')),),
        ),
        Panel(
            "Ends of answers",
            "reqps",
            (("{{finished_reason}}", rate("zse_request_success_total", "finished_reason")),),
        ),
        Panel(
            "Cancelled and refused",
            "reqps",
            (
                ("cancelled", rate("zse_requests_cancelled_total")),
                ("refused: queue full", rate("zse_admission_rejections_total", "", 'job=~".*"')),
            ),
        ),
    ),
    "Where the time goes": (
        Panel("Waiting for the engine", "s", quantiles("zse_request_queue_time_seconds")),
        Panel("Reading prompts", "s", quantiles("zse_request_prefill_time_seconds")),
        Panel("Writing answers", "s", quantiles("zse_request_decode_time_seconds")),
        Panel(
            "Running and waiting",
            "short",
            (
                ("running", f"sum(zse_num_requests_running{{{MODEL}}})"),
                ("waiting", f"sum(zse_num_requests_waiting{{{MODEL}}})"),
            ),
        ),
        Panel(
            "KV cache in use",
            "percentunit",
            (("{{instance}}", f"zse_kv_cache_usage_perc{{{MODEL}}}"),),
        ),
        Panel("Preemptions", "ops", (("preemptions", rate("zse_num_preemptions_total")),)),
    ),
    "Tokens": (
        Panel(
            "Tokens a second",
            "short",
            (
                ("prompts", rate("zse_prompt_tokens_total")),
                ("answers", rate("zse_generation_tokens_total")),
                ("computed", rate("zse_computed_tokens_total")),
            ),
        ),
        Panel(
            "Share of prompts found in the cache",
            "percentunit",
            (
                (
                    "hits",
                    f"{rate('zse_prefix_cache_hits_total')}"
                    f" / {rate('zse_prefix_cache_queries_total')}",
                ),
            ),
        ),
        Panel("Tokens of a prompt", "short", quantiles("zse_request_prompt_tokens")),
        Panel("Tokens of an answer", "short", quantiles("zse_request_generation_tokens")),
        Panel(
            "Time per token of an answer",
            "s",
            quantiles("zse_request_time_per_output_token_seconds"),
        ),
        Panel("Steps a second", "ops", (("steps", rate("zse_engine_steps_total")),)),
    ),
    "Cold starts": (
        Panel(
            "Phases of the last start",
            "ms",
            (("{{phase}}", "max by (phase) (zse_cold_start_milliseconds)"),),
            "first-token is what the first client would have waited had it asked at once.",
        ),
        Panel(
            "First token of a started process",
            "s",
            tuple(
                (
                    f"p{float(q) * 100:g}",
                    f"histogram_quantile({q}, sum by (le) "
                    '(zse_cold_start_seconds_bucket{phase="first-token"}))',
                )
                for q in QUANTILES
            ),
        ),
        Panel("Ready replicas", "short", (("ready", "sum(zse_ready)"),)),
    ),
}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []}
        )
        top += 1
        per_row = COLUMNS // WIDTH
        for number, panel in enumerate(row):
            x, y = number % per_row * WIDTH, top + number // per_row * HEIGHT
            panels.append(_graph(panel, len(panels) + 1, x, y))
        top += -(-len(row) // per_row) * HEIGHT
    return {
        "uid": "zse",
        "title": "zse",
        "tags": ["llm", "zse"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _model()]},
        "panels": panels,
    }


def _graph(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": name,
            }
            for index, (name, query) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _model() -> dict[str, Any]:
    return {
        "name": "model",
        "type": "query",
        "label": "Model",
        "datasource": SOURCE,
        "query": "label_values(zse_kv_blocks_total, model)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = json.dumps(dashboard(), indent=2) + "\n"
    if not options.check:
        PATH.write_text(text)
        return 0
    if PATH.read_text() != text:
        print(f"error: {PATH.name} is stale; run scripts/grafana.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
