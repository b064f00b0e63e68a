"""`zse cost`: the cheapest way to have a model, in words and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from zse.cli import run

if TYPE_CHECKING:
    Captured = pytest.CaptureFixture[str]


def test_the_cheapest_way_is_named_with_the_day_of_its_price(capsys: Captured) -> None:
    assert run(["cost", "--memory-gib", "6", "--requests-per-hour", "5"]) == 0
    said = capsys.readouterr().out
    assert "cheapest: RunPod" in said
    assert "list prices of 20" in said
    assert "after the last" in said
    assert "always" in said


def test_json_has_what_the_table_shows(capsys: Captured) -> None:
    arguments = ["cost", "tiny", "--platform", "modal", "--idle-seconds", "120", "--json"]
    assert run(arguments) == 0
    sleepy, always = json.loads(capsys.readouterr().out)
    assert (sleepy["platform"], sleepy["sleepy"]["idle_seconds"]) == ("modal", 120)
    assert sleepy["usd_per_month"] < always["usd_per_month"]
    assert 0 < sleepy["slow_share"] < 1
    assert always["sleepy"] is None


def test_a_bound_on_slow_requests_decides_how_long_machines_are_kept(capsys: Captured) -> None:
    arguments = ["cost", "tiny", "--platform", "modal", "--slow-percent", "10", "--json"]
    assert run(arguments) == 0
    sleepy, _ = json.loads(capsys.readouterr().out)
    assert sleepy["slow_share"] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "size is not known"),
        (["--memory-gib", "1000"], "no platform with a known price"),
        (["--memory-gib", "6", "--platform", "heroku"], "'heroku'"),
        (["--memory-gib", "6", "-r", "0"], "requests_per_hour is 0"),
        (["--memory-gib", "6", "--slow-percent", "0"], "share of slow requests"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    capsys: Captured, arguments: list[str], words: str
) -> None:
    assert run(["cost", *arguments]) != 0
    assert words in capsys.readouterr().err
