"""The simulation of fleets: nothing is lost, a seed says all, and theory agrees where there is one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

from fleet_curves import Curves, measured, with_slow_starts  # noqa: E402
from fleet_policies import AlwaysWarm, ScaleToZero, Seen, SwapPool  # noqa: E402
from fleet_simulator import Simulation  # noqa: E402
from fleet_traces import Bursts, Request, poisson, requests_of  # noqa: E402

STEP = 0.001
ONE_AT_A_TIME = Curves(
    start_seconds=(0.4,),
    swap_seconds=(0.2,),
    steps=((1, STEP),),
    prompt_tokens_per_second=1e12,
    platform_seconds=0.0,
)
BUSY = Bursts(silence_seconds=30.0, burst_seconds=10.0, rate=2.0, output_tokens=50)
POLICIES = [AlwaysWarm(), AlwaysWarm(2), ScaleToZero(), ScaleToZero(concurrency=1), SwapPool()]


def run(policy, *, models=5, seconds=200.0, curves=None, gpus=0, seed=1, bursts=BUSY):
    trace = requests_of(bursts, models=models, seconds=seconds, seed=seed)
    simulation = Simulation(curves or measured(), policy, gpus=gpus, seed=seed)
    return simulation.run(trace, models=models, seconds=seconds)


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    models=st.integers(1, 6),
    gpus=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_every_request_that_arrives_ends_once_and_gpus_are_never_more_than_there_are(
    policy, models, gpus, seed
):
    if policy.at_least:
        gpus = 0
    result = run(policy, models=models, seconds=60.0, gpus=gpus, seed=seed)
    wanted = sum(1 for _ in requests_of(BUSY, models=models, seconds=60.0, seed=seed))
    assert result.arrived == result.finished == wanted
    assert len(result.first_token_seconds) == len(result.waited_seconds) == wanted
    assert min(result.first_token_seconds, default=1.0) > 0
    assert not gpus or result.most_gpus <= gpus
    assert result.gpu_seconds <= max(result.most_gpus, gpus) * 60.0


def test_a_seed_says_all_and_another_seed_something_else():
    first, again, other = (run(ScaleToZero(), seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def erlang_c(servers: int, load: float) -> float:
    """Return the share of requests that wait (Erlang 1917), of M/M/c."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.8), (3, 2.1), (8, 6.4)])
def test_waiting_is_what_theory_says_of_servers_that_serve_one_at_a_time(servers, load):
    mean = 1000 * STEP
    seconds = 40_000 * mean / load
    trace = poisson(load / mean, seconds=seconds, output_tokens=1000, seed=3)
    simulation = Simulation(ONE_AT_A_TIME, AlwaysWarm(servers))
    result = simulation.run(trace, models=1, seconds=seconds)
    waits = erlang_c(servers, load)
    share = sum(1 for each in result.waited_seconds if each > 1e-9) / result.arrived
    expected = waits * mean / (servers - load)
    assert share == pytest.approx(waits, rel=0.1)
    assert sum(result.waited_seconds) / result.arrived == pytest.approx(expected, rel=0.15)


def test_requests_that_decode_together_take_the_steps_that_were_measured():
    curves = Curves((1.0,), (1.0,), ((1, 0.001), (2, 0.0015)), 1e12, platform_seconds=0.0)
    trace = [Request(0.0, 0, 0, 1000), Request(0.0, 0, 0, 500)]
    simulation = Simulation(curves, AlwaysWarm(1))
    ends = []
    finish = simulation._finish

    def note(replica, now):
        ends.append(now)
        finish(replica, now)

    simulation._finish = note
    simulation.run(trace, models=1, seconds=1.0)
    # Both for 500 tokens at 1.5 ms, then one for 500 more at 1 ms; a first token takes one step.
    assert ends == pytest.approx([0.751, 1.251], abs=1e-6)


def test_decoding_rests_while_a_prompt_is_read():
    curves = Curves((1.0,), (1.0,), ((1, 0.001), (2, 0.001)), 1000, platform_seconds=0.0)
    trace = [Request(0.0, 0, 0, 1000), Request(0.5, 0, 1000, 1)]
    result = Simulation(curves, AlwaysWarm(1)).run(trace, models=1, seconds=3.0)
    assert result.first_token_seconds == pytest.approx([0.001, 1.001])


def test_what_sleeps_costs_less_and_waits_for_starts():
    warm, sleeping = run(AlwaysWarm()), run(ScaleToZero(idle_seconds=5.0))
    slow = run(ScaleToZero(idle_seconds=5.0), curves=with_slow_starts(measured(), 15.0))
    assert sleeping.gpu_seconds < warm.gpu_seconds
    assert warm.percentile(0.99) < 0.2 < sleeping.percentile(0.99) < 3
    assert slow.percentile(0.99) > 15
    assert slow.gpu_seconds > sleeping.gpu_seconds  # starting is paid for


def test_an_idle_model_makes_room_for_one_that_is_asked_for():
    trace = [Request(0.0, 0, 10, 10), Request(5.0, 1, 10, 10), Request(10.0, 0, 10, 10)]
    result = Simulation(measured(), SwapPool(), gpus=1).run(trace, models=2, seconds=20.0)
    assert result.swaps == 3
    assert max(result.first_token_seconds) < 0.5
    assert result.gpu_seconds == 20.0


def test_starts_that_share_one_store_take_longer_the_more_they_are():
    curves = Curves((0.4,), (0.2,), ((8, 0.001),), 1e5, 0.0, 10**9, 10**9)
    trace = [Request(1.0, model, 1, 1) for model in range(10)]
    result = Simulation(curves, ScaleToZero()).run(trace, models=10, seconds=20.0)
    assert result.most_starting == 10
    assert result.first_token_seconds == pytest.approx([10.4] * 10, abs=0.1)
    late = [Request(1.0, 0, 1, 1), Request(1.5, 1, 1, 1)]
    result = Simulation(curves, ScaleToZero()).run(late, models=2, seconds=20.0)
    # Alone for half a second, then half as fast; and the other way round for the second.
    assert result.first_token_seconds == pytest.approx([1.5 + 0.4, 1.5 + 0.4], abs=0.01)


def test_policies_see_numbers_and_say_numbers():
    assert ScaleToZero(concurrency=16, most=4).wanted(Seen(0, 0)) == 0
    assert ScaleToZero(concurrency=16, most=4).wanted(Seen(17, 1)) == 2
    assert ScaleToZero(concurrency=16, most=4).wanted(Seen(1000, 1)) == 4
    assert AlwaysWarm(3).wanted(Seen(0, 3)) == 3


def test_silences_and_rates_of_a_trace_are_what_was_asked_for():
    bursts = Bursts(silence_seconds=100.0, spread=0.5, burst_seconds=20.0, rate=3.0)
    made = list(requests_of(bursts, models=50, seconds=4000.0, seed=2))
    assert [each.at for each in made] == sorted(each.at for each in made)
    rate = len(made) / 4000 / 50
    assert rate == pytest.approx(3.0 * 20 / 120, rel=0.1)
    busy = Bursts(silence_seconds=30.0, burst_seconds=20.0, crowd_at=50.0, crowd_share=1.0)
    for model in range(30):
        times = [each.at for each in requests_of(busy, models=model + 1, seconds=100.0, seed=model)]
        assert times == sorted(times)
    crowd = Bursts(silence_seconds=1e9, crowd_at=10.0, crowd_share=0.5)
    woken = {r.model for r in requests_of(crowd, models=400, seconds=20.0, seed=2) if r.at >= 10}
    assert 150 < len(woken) < 250


def test_the_command_tells_what_it_found_as_one_line_of_json():
    command = [sys.executable, str(BENCH / "fleet.py"), "--models", "4", "--hours", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    report = json.loads(done.stdout.splitlines()[-1])
    assert {row["subject"] for row in report["results"]} >= {"always warm", "pool that swaps"}
    assert report["usd_per_gpu_hour"] > 0
