"""The cold-start ledger."""

import os
import time

import pytest

from zse.serve.ledger import Ledger, container_age_ms, process_age_ms


def test_the_kernel_knows_how_old_this_process_is():
    assert 0 < process_age_ms() < 86_400_000


def test_a_launchers_clock_wins_over_the_kernels():
    started = time.time_ns() - 5_000_000_000
    assert 5000 <= process_age_ms(started) < 60_000


def test_a_launcher_from_the_future_counts_as_now():
    assert process_age_ms(time.time_ns() + 10**12) == 0


def test_what_the_container_took_before_the_process_is_a_phase():
    now = time.time_ns()
    ledger = Ledger(now - 1_000_000_000, now - 3_000_000_000)
    phase = ledger.to_json()["container"]
    assert phase["duration_ms"] == pytest.approx(2000, abs=500)
    assert phase["end_ms"] == 0
    assert "cold-container;dur=" in ledger.server_timing("a")


def test_a_container_that_is_no_older_than_its_process_adds_nothing():
    started = time.time_ns() - 1_000_000_000
    assert "container" not in Ledger(started, started).to_json()
    assert "container" not in Ledger(started).to_json()


def fake_proc(folder, *, namespace="pid:[4026532999]", parent=1, first_age_seconds=4):
    """Write what the kernel would show of a process and of the first of its namespace."""
    ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - first_age_seconds) * os.sysconf("SC_CLK_TCK")
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(namespace)
    (folder / "self/stat").write_text(f"7 (a) b) S {parent} 1 1")
    (folder / "1").mkdir()
    (folder / "1/stat").write_text(f"1 (init) S 0 {'0 ' * 17}{int(ticks)} 0")
    return folder


def test_a_containers_first_process_tells_its_age(tmp_path):
    assert container_age_ms(proc=fake_proc(tmp_path)) == pytest.approx(4000, abs=200)


@pytest.mark.parametrize(
    "facts",
    [{"namespace": "pid:[4026531836]"}, {"parent": 1234}, {"first_age_seconds": 4000}],
    ids=["a host", "another's child", "a container that has served before"],
)
def test_what_says_nothing_of_this_start_is_not_told(tmp_path, facts):
    assert container_age_ms(proc=fake_proc(tmp_path, **facts)) == 0


def test_a_kernel_that_shows_nothing_is_no_error(tmp_path):
    assert container_age_ms(proc=tmp_path) == 0


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


def test_what_was_done_before_the_ledger_is_on_its_clock():
    ledger = Ledger(clock=Clock())
    ledger.note("driver", 99.99, 100.25)
    driver = ledger.to_json()["driver"]
    assert driver["duration_ms"] == pytest.approx(260)
    assert driver["start_ms"] == pytest.approx(ledger.now_ms() - 10, abs=0.2)


def test_the_ledger_of_a_model_begins_with_the_model_and_knows_no_process():
    began = time.monotonic()
    ledger = Ledger.of_model()
    with ledger.phase("weights"):
        pass
    phases = ledger.to_json()
    assert list(phases) == ["weights"]
    took_ms = 1000 * (time.monotonic() - began)
    assert 0 <= phases["weights"]["start_ms"] <= took_ms  # as old as the model, not as its process


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
