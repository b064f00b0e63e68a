from __future__ import annotations

import threading

import pytest

from zse.store.http.retry import (
    MAX_PAUSE_SECONDS,
    BusyServerError,
    backoff_seconds,
    pause,
    retry_after_seconds,
)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        (" 7 ", 7),
        ("-7", 0),
        ("9" * 400, MAX_PAUSE_SECONDS),
        ("soon", 0),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 20),
        ("Thu, 01 Jan 1970 00:00:05 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float) -> None:
    assert retry_after_seconds(header, now=10) == seconds


def test_pauses_double_and_never_exceed_a_minute() -> None:
    for attempt, longest in ((1, 0.2), (2, 0.4), (4, 1.6), (30, MAX_PAUSE_SECONDS)):
        assert longest / 2 <= backoff_seconds(attempt) <= longest


def test_a_pause_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, slept = threading.Event(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        stop.set()

    monkeypatch.setattr("time.sleep", sleep)
    pause(1, BusyServerError("busy", "30"), stop)
    assert len(slept) == 1
