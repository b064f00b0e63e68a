"""The interpreter's switch interval while loads run."""

from __future__ import annotations

import sys

import pytest

from zse.stream import turns
from zse.stream.turns import (
    START_TURN_SECONDS,
    TURN_SECONDS,
    begin_turns,
    end_turns,
    short_turns,
)


def test_turns_are_short_until_the_last_block_has_ended() -> None:
    usual = sys.getswitchinterval()
    with short_turns():
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
    assert sys.getswitchinterval() == usual


def test_the_shortest_turns_that_anybody_asks_for_count() -> None:
    usual = sys.getswitchinterval()
    begin_turns(START_TURN_SECONDS)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        end_turns(START_TURN_SECONDS)  # whoever asked first may end first
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
    assert sys.getswitchinterval() == usual


def test_an_error_gives_the_usual_turns_back() -> None:
    usual = sys.getswitchinterval()
    with pytest.raises(ValueError, match="broken"), short_turns():
        raise ValueError("broken")
    assert sys.getswitchinterval() == usual


def test_turns_that_are_shorter_already_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_asked", [])  # a model of another test may still be on its way
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(1e-5)
    finally:
        sys.setswitchinterval(usual)
