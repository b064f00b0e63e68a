"""The load test's own parts: its requests are the same for every server, its figures are right."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def load_scripts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import load_client
        import load_plan
        import serve_load
    finally:
        sys.path.remove(str(SCRIPTS))
    return SimpleNamespace(client=load_client, plan=load_plan, main=serve_load)


def options(**values):
    defaults = {"seed": 0, "seconds": 200.0, "shared": 0.5, "prefix": 50, "prefixes": 2}
    return SimpleNamespace(**{**defaults, "input": (4, 16), "output": (8, 32), **values})


def test_every_server_is_sent_the_same_and_arrivals_have_the_rate_asked_for(load_scripts):
    planned = load_scripts.plan.plan_load(options(), rate=5.0)
    assert planned == load_scripts.plan.plan_load(options(), rate=5.0)
    assert planned != load_scripts.plan.plan_load(options(seed=1), rate=5.0)
    assert abs(len(planned) - 1000) < 150
    times = [each.at_seconds for each in planned]
    assert times == sorted(times)


def test_half_of_the_prompts_begin_with_one_of_a_few_texts(load_scripts):
    planned = load_scripts.plan.plan_load(options(), rate=5.0)
    beginnings = {each.prompt[:60] for each in planned if len(each.prompt.split()) > 50}
    assert len(beginnings) == 2
    shared = sum(each.prompt[:60] in beginnings for each in planned) / len(planned)
    assert 0.4 < shared < 0.6
    assert all(8 <= each.num_output <= 32 for each in planned)


def test_goodput_counts_what_was_whole_and_in_time(load_scripts):
    outcome = load_scripts.client.Outcome
    outcomes = [
        outcome(times=[0.5, 0.6, 0.7]),
        outcome(times=[3.0, 3.1]),  # began too late
        outcome(times=[0.5, 2.5]),  # went on too slowly
        outcome(times=[0.5], problem="cut"),
    ]
    goal = {"ttft": 1.0, "tbt": 0.5}
    told = options(objective=goal, seconds=2.0, rounds=1)
    found = load_scripts.main.figures(outcomes, told)
    assert (found["requests"], found["failed"], found["goodput_per_s"]) == (4, 1, 0.5)
    assert found["ttft_ms_p99"] == 3000.0


def test_what_cannot_be_read_is_refused(load_scripts):
    assert load_scripts.main.objective("ttft=2,tbt=0.1") == {"ttft": 2.0, "tbt": 0.1}
    with pytest.raises(Exception, match="ttft=SECONDS"):
        load_scripts.main.objective("ttft=2")
