"""What the server remembers of requests: sums, steps and the last ones; no texts."""

import sys
import threading

import pytest

from zse.serve.history import MAX_FACTS, MAX_MINUTES, History, RequestFact


def fact(ended_at, **values):
    fields = {
        "request_id": "r",
        "model": "m",
        "caller": "",
        "duration_ms": 10.0,
        "first_token_ms": 5.0,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "outcome": "completed",
    }
    return RequestFact(ended_at=ended_at, **{**fields, **values})


def test_minutes_are_sums_and_quiet_ones_are_empty():
    history = History(now=lambda: 200.0)
    for ended_at in (70.0, 75.0, 190.0):
        history.add(fact(ended_at))
    minutes = history.minutes(3)
    assert [(one.started_at, one.requests, one.prompt_tokens) for one in minutes] == [
        (60, 2, 6),
        (120, 0, 0),
        (180, 1, 3),
    ]


def test_facts_and_minutes_are_bounded():
    history = History(now=lambda: 0.0)
    for minute in range(MAX_MINUTES + 10):
        history.add(fact(minute * 60.0))
    assert len(history.latest()) == MAX_FACTS
    assert history.latest(1)[0].ended_at == (MAX_MINUTES + 9) * 60.0
    history.now = lambda: (MAX_MINUTES + 9) * 60.0
    assert all(one.requests == 1 for one in history.minutes(MAX_MINUTES))


def test_facts_can_be_looked_at_in_a_thread_while_requests_end():
    history, is_over = History(now=lambda: 0.0), threading.Event()
    one = fact(0.0)

    def end_requests():
        while not is_over.is_set():
            history.add(one)

    for _ in range(MAX_FACTS):
        history.add(one)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    ending = threading.Thread(target=end_requests)
    ending.start()
    try:
        assert all(len(history.latest()) == MAX_FACTS for _ in range(5000))
    finally:
        is_over.set()
        ending.join()
        sys.setswitchinterval(before)


def test_a_clock_that_is_set_back_adds_to_the_newest_minute():
    history = History(now=lambda: 120.0)
    history.add(fact(125.0))
    history.add(fact(10.0))
    assert history.minutes(1)[0].requests == 2


def test_the_overview_sums_what_was_asked(call):
    call.chat("say:abc")
    call.chat("say:abcd")
    found = call("GET", "/api/analytics").json()
    assert found["total_requests"] == 2
    assert found["completion_tokens"] == 7
    assert found["total_tokens"] == found["prompt_tokens"] + 7
    assert found["requests_by_model"] == {"scripted": 2}
    assert found["latency_ms"]["p50"] > 0
    assert found["first_token_ms"]["p95"] > 0


def test_nothing_asked_is_no_division_by_zero(call):
    found = call("GET", "/api/analytics").json()
    assert found["total_requests"] == 0
    assert found["latency_ms"] == {"mean": None, "p50": None, "p95": None, "p99": None}
    points = call("GET", "/api/analytics/timeseries").json()["points"]
    assert len(points) == 60
    assert points[-1]["mean_latency_ms"] is None


def test_steps_of_a_series_join_minutes(call):
    call.chat("say:abc")
    url = "/api/analytics/timeseries?minutes=10&interval_minutes=5"
    series = call("GET", url).json()
    assert series["interval_seconds"] == 300
    assert [point["requests"] for point in series["points"]] == [0, 1]
    assert series["points"][1]["timestamp"] - series["points"][0]["timestamp"] == 300


def test_the_last_requests_come_first_and_hold_no_text(call):
    call.chat("say:canary")
    call.chat("break:2")
    response = call("GET", "/api/analytics/requests?limit=1")
    assert response.json()["total"] == 2
    (newest,) = response.json()["requests"]
    assert (newest["outcome"], newest["model"]) == ("aborted", "scripted")
    assert "canary" not in call("GET", "/api/analytics/requests").text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("minutes=0", "minutes"),
        ("minutes=1441", "minutes"),
        ("minutes=x", "minutes"),
        ("minutes=9" + "9" * 5000, "minutes"),
    ],
)
def test_what_is_out_of_range_is_an_error_of_openais_shape_that_echoes_nothing(
    call, check_error, query, param
):
    response = call("GET", f"/api/analytics?{query}")
    check_error(response, 400, param=param)
    assert len(response.content) < 400
