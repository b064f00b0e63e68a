"""What the tools compute, and what they refuse to."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from zse.tools.calculator import compute
from zse.tools.clock import Moment, clock
from zse.tools.registry import ToolError
from zse.tools.texts import TextWork, find, work


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * (3 + 4) ** 2", 98),
        ("2^10", 1024),
        ("7 // 2 + 7 % 4", 6),
        ("-3 + +2", -1),
        ("sqrt(2)", math.sqrt(2)),
        ("sin(pi / 6)", math.sin(math.pi / 6)),
        ("log(8, 2)", 3.0),
        ("max(1, 2, 3) - min(4, 5)", -1),
        ("round(2.567, 2)", 2.57),
        ("factorial(20)", math.factorial(20)),
        ("factorial(500)", math.factorial(500)),
        ("round(1234, -2)", 1200),
        ("round(2.5)", 2),
    ],
)
def test_arithmetic(expression, value):
    assert compute(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "().__class__.__bases__[0].__subclasses__()", "__import__('os').system('id')", "open('x')",
        "lambda: 1", "[1 for _ in range(9)]", "x", "'a' * 9", "True", "1 if 2 else 3", "a := 3",
        "f'{1}'", "max(*[1])", "sin(x=1)", "", "1 +", "1; 2", "1/0", "sqrt(-1)", "(-1) ** 0.5",
        "9**9**9", "10 ** 5000", "factorial(10**6)", "factorial(2.5)", "exp(1000)", "1e308 * 10 // 1",
        "(" * 60 + "1" + ")" * 60, "1+" * 300 + "1", "9" * 501, "sin()", "\x00",
        "round(7, -99999)", "round(7, -9**99)", "round(7, 1, 1)",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_or_grows_without_end_is_refused(expression):
    with pytest.raises(ToolError):
        compute(expression)


def told(**asked):
    now = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    return clock(lambda: now).call(asked)


def test_the_time_somewhere_else():
    assert told(timezone="Europe/Berlin")["iso"] == "2026-03-29T01:30:00+01:00"
    # An hour later clocks there have been put forward.
    assert told(timezone="Europe/Berlin", add_seconds=3600)["iso"] == "2026-03-29T03:30:00+02:00"


def test_the_seconds_between_two_times():
    asked = {"time": "2026-01-01", "until": "2026-01-02T00:00:00+00:00"}
    assert told(**asked)["seconds_until"] == 86_400


@pytest.mark.parametrize(
    "asked",
    [
        {"timezone": "../../etc/passwd"},
        {"timezone": "Nowhere/City"},
        {"timezone": "\x00"},
        {"time": "yesterday"},
        {"add_seconds": 1e30},
        {"time": "9999-12-31", "timezone": "UTC", "add_seconds": 86_400.0 * 2},
    ],
)
def test_times_that_are_none_are_refused(asked):
    with pytest.raises(ToolError):
        told(**asked)


def test_a_moment_has_a_zone_without_being_asked():
    assert Moment().timezone == "UTC"


@pytest.mark.parametrize(
    ("path", "value"),
    [("", {"a": [1, {"b c": None}]}), ("a", [1, {"b c": None}]), ("a[0]", 1), ("a[-1].b c", None)],
)
def test_values_deep_in_json(path, value):
    assert find('{"a": [1, {"b c": null}]}', path) == value


@pytest.mark.parametrize("path", ["b", "a[9]", "a.x", "a[x]", "[0]", "a..b", "a["])
def test_where_nothing_lies_the_model_is_told_what_does(path):
    with pytest.raises(ToolError):
        find('{"a": [1]}', path)


@pytest.mark.parametrize("text", ["", "{", "[" * 99_999, "x" * 100_001])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ToolError):
        find(text, "")


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        ({"operation": "count", "text": "strawberry", "other": "r"}, 3),
        ({"operation": "reverse", "text": "abc"}, "cba"),
        ({"operation": "split", "text": "a,b", "other": ","}, ["a", "b"]),
        ({"operation": "join", "parts": ["a", "b"], "other": "-"}, "a-b"),
        ({"operation": "replace", "text": "aa", "other": "a", "replacement": "bb"}, "bbbb"),
        ({"operation": "slice", "text": "abcdef", "start": 1, "end": 3}, "bc"),
        ({"operation": "length", "text": "grüße"}, 5),
    ],
)
def test_texts(asked, value):
    assert work(TextWork(**asked)) == value


@pytest.mark.parametrize(
    "asked",
    [
        {"operation": "count", "text": "a"},
        {"operation": "upper", "text": "x" * 100_001},
        {"operation": "replace", "text": "a" * 9999, "other": "a", "replacement": "b" * 9999},
        {"operation": "join", "parts": [""] * 9999, "other": "b" * 9999},
    ],
)
def test_texts_that_are_too_long_are_refused(asked):
    with pytest.raises(ToolError):
        work(TextWork(**asked))
