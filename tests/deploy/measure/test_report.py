"""What is made of several starts."""

import json

import pytest

from zse.deploy.errors import OverBudgetError
from zse.deploy.measure.report import make_report, measure_limits
from zse.deploy.measure.start import LedgerPhase, Start


def start(first_token_ms: float, **durations: float) -> Start:
    ledger = {name: LedgerPhase(end_ms=ms + 5, duration_ms=ms) for name, ms in durations.items()}
    return Start(live_ms=10, ready_ms=50, first_token_ms=first_token_ms, ledger=ledger)


STARTS = [
    start(80, interpreter=10, weights=30, ready=49),
    start(100, interpreter=14, weights=20, ready=49),
    start(300, interpreter=11, ready=49),
]


def report(**changes):
    given = {"limits_ms": {"interpreter": 9.0}, "budget_ms": None, **changes}
    return make_report("tiny", "process", STARTS, **given)


def test_the_median_decides_about_the_budget_and_one_slow_start_does_not():
    assert report(budget_ms=100).is_within_budget
    report(budget_ms=100).check_budget()
    report().check_budget()
    with pytest.raises(OverBudgetError, match="after 100 ms, the budget is 99 ms") as caught:
        report(budget_ms=99).check_budget()
    assert caught.value.exit_code == 13


def test_phases_that_a_start_lacks_and_moments_are_left_out():
    found = report()
    assert list(found.phases) == ["interpreter"]
    assert found.phases["interpreter"].duration.median_ms == 11
    assert (found.phases["interpreter"].end.min_ms, found.phases["interpreter"].end.max_ms) == (
        15,
        19,
    )
    assert found.milestones["first-token"].max_ms == 300


def test_json_has_every_figure():
    document = json.loads(json.dumps(report(budget_ms=99).to_json()))
    assert document["milestones"]["first-token"] == {"median_ms": 100, "min_ms": 80, "max_ms": 300}
    assert document["phases"]["interpreter"]["duration"]["median_ms"] == 11
    assert document["limits_ms"] == {"interpreter": 9.0}
    assert document["is_within_budget"] is False


def test_the_table_shows_budget_and_limit_beside_what_they_are_for():
    lines = report(budget_ms=99).to_text().splitlines()
    assert lines[0] == "tiny: 3 cold starts (process)"
    (first_token,) = [line for line in lines if line.strip().startswith("first-token")]
    assert first_token.split()[1:] == ["100.0", "80.0", "to", "300.0", "99", "ms"]
    (interpreter,) = [line for line in lines if line.strip().startswith("interpreter")]
    assert interpreter.endswith("9.0 ms")


def test_a_bare_interpreter_is_the_limit_of_the_first_phase():
    assert measure_limits().keys() == {"interpreter"}
    assert measure_limits()["interpreter"] > 0
