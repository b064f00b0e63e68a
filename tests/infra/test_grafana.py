"""The dashboard asks for metrics that are there, and is the one that its table makes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.serve.telemetry.families import COUNTERS, FAMILIES

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "infra/grafana/zse.json").read_text())
GRAPHS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in GRAPHS for target in panel["targets"]]


def told_names() -> set[str]:
    """Return every name that /metrics can have."""
    text = AppState(ledger=Ledger()).metrics.render().decode()
    names = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    for row in FAMILIES.values():
        names |= {f"{row.name}_{end}" for end in (("bucket",) if row.bounds else ("total",))}
    return names | {f"{name}_total" for name in COUNTERS} | {"zse_cold_start_seconds_bucket"}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_metrics_that_the_server_tells(query: str) -> None:
    asked = set(re.findall(r"\bzse_\w+", query))
    assert asked
    assert asked <= told_names()


def test_the_file_is_what_the_table_makes() -> None:
    script = ROOT / "scripts/grafana.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0


def test_no_two_graphs_lie_on_each_other() -> None:
    for one, other in combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_every_panel_has_a_number_of_its_own() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
