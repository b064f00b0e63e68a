"""The cold-start ledger."""

import time

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
    parts = ledger.server_timing().split(", ")
    assert [part.split(";")[0] for part in parts] == ["cold-interpreter", "cold-ready"]
    assert all(float(part.split(";dur=")[1]) >= 0 for part in parts)
