"""The cold-start ledger."""

import time

import pytest

from zse.serve.ledger import Ledger, process_age_ms


def test_the_kernel_knows_how_old_this_process_is():
    assert 0 < process_age_ms() < 86_400_000


def test_a_launchers_clock_wins_over_the_kernels():
    started = time.time_ns() - 5_000_000_000
    assert 5000 <= process_age_ms(started) < 60_000


def test_a_launcher_from_the_future_counts_as_now():
    assert process_age_ms(time.time_ns() + 10**12) == 0


def test_phases_follow_each_other_and_moments_are_kept_once():
    ledger = Ledger()
    with ledger.phase("load"):
        pass
    ledger.mark("ready")
    first = ledger.to_json()["ready"]
    ledger.mark("ready")
    phases = ledger.to_json()
    assert list(phases) == ["interpreter", "load", "ready"]
    assert phases["ready"] == first
    assert phases["load"]["start_ms"] >= phases["interpreter"]["end_ms"] - 1


def test_server_timing_is_a_list_of_durations():
    ledger = Ledger()
    ledger.mark("ready")
    parts = ledger.server_timing("a").split(", ")
    assert [part.split(";")[0] for part in parts] == ["cold-interpreter", "cold-ready"]
    assert all(float(part.split(";dur=")[1]) >= 0 for part in parts)


class Clock:
    """Seconds that a test says."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_the_first_token_counts_the_start_and_its_own_request_and_no_idle_time():
    clock = Clock()
    ledger = Ledger(clock=clock)
    clock.seconds += 3
    ledger.mark("ready")
    clock.seconds += 5  # nobody asks
    clock.seconds += 0.25
    ledger.mark_first_token("a", 250)
    clock.seconds += 60
    ledger.mark_first_token("b", 9)
    phases = ledger.to_json()
    expected = phases["ready"]["end_ms"] + 250
    assert phases["first-token"]["end_ms"] == pytest.approx(expected, abs=0.2)
    assert phases["first-token"]["duration_ms"] == phases["first-token"]["end_ms"]


def test_only_the_answer_that_waited_for_the_first_token_reports_it():
    ledger = Ledger()
    assert "cold-first-token" not in ledger.server_timing("a")
    ledger.mark("ready")
    ledger.mark_first_token("a", 250)
    assert "cold-first-token" in ledger.server_timing("a")
    assert "cold-ready" in ledger.server_timing("b")
    assert "cold-first-token" not in ledger.server_timing("b")
