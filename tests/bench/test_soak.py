"""The soak finds nothing amiss on the built-in model, and finds what is put there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zse.settings import subprocess_environment

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import soak_requests

    return soak_requests


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forty_mixed_requests_are_answered_and_nothing_leaks() -> None:
    flags = ["--requests", "40", "--concurrency", "8", "--longest", "96", "--device", "cpu"]
    run = subprocess.run(
        [sys.executable, str(BENCH / "soak.py"), "tiny", *flags],
        check=False,
        capture_output=True,
        text=True,
        env=subprocess_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        timeout=500,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["requests"] == 40
    assert report["compared"] > 5
    assert report["cancelled"] > 0
    assert report["lost"] == report["wrong"] == report["leaked_blocks"] == 0


def make_plans(module, **changes):
    from argparse import Namespace

    options = {"requests": 60, "cancel": 0.3, "longest": 64, "seed": 1} | changes
    return module.make_plans(Namespace(**options), 100)


def test_the_requests_repeat_from_their_seed_and_fit_their_length(requests) -> None:
    plans = make_plans(requests)
    assert plans == make_plans(requests)
    assert plans != make_plans(requests, seed=2)
    assert all(len(plan.prompt) + plan.params.max_tokens <= 64 for plan in plans)
    assert {plan.is_greedy for plan in plans} == {True, False}
    assert any(plan.cancel_after == 0 for plan in make_plans(requests, requests=300))
    assert all(plan.cancel_after is None for plan in make_plans(requests, cancel=0))


def delta(**fields):
    from zse.engine.output import Delta

    return Delta(index=0, text="", **fields)


def test_an_answer_that_is_short_unended_or_goes_on_is_a_problem(requests) -> None:
    plan = next(p for p in make_plans(requests) if p.is_greedy and p.params.max_tokens > 4)
    count = plan.params.max_tokens

    def problem_of(*deltas):
        outcome = requests.Outcome(plan=plan)
        for item in deltas:
            outcome.note(item)
        outcome.check()
        assert outcome.is_whole == (not outcome.problem)
        return outcome.problem

    whole = delta(token_ids=[1] * count, finish_reason="length")
    assert problem_of(whole) == ""
    assert "3 tokens" in problem_of(delta(token_ids=[1] * 3, finish_reason="length"))
    assert "ended by None" in problem_of(delta(token_ids=[1] * count))
    assert "ended by abort" in problem_of(delta(token_ids=[1], finish_reason="abort"))
    assert "goes on past its end" in problem_of(whole, delta(token_ids=[1]))


def test_the_first_difference_of_two_answers(requests) -> None:
    assert requests.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert requests.first_difference([1, 2, 3], [1, 5, 4]) == 1
