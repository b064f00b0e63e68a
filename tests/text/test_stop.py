"""Stop strings end a text wherever the tokens' borders fall, and never show."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from zse.text.stop import StopChecker


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    checker = StopChecker(stops)
    shown = ""
    for piece in pieces:
        text, is_stopped = checker.push(piece)
        shown += text
        if is_stopped:
            return shown, True
    return shown + checker.flush(), False


def test_text_before_the_stop_string_is_shown_and_the_rest_dropped():
    assert run(["END"], ["one END two"]) == ("one ", True)


def test_a_stop_string_over_three_pieces_never_shows():
    checker = StopChecker(["</answer>"])
    assert checker.push("yes</an") == ("yes", False)
    assert checker.push("swe") == ("", False)
    assert checker.push("r> more") == ("", True)
    assert checker.push("more") == ("", True)
    assert checker.flush() == ""


def test_what_turns_out_to_be_no_stop_string_is_shown_after_all():
    checker = StopChecker(["abc"])
    assert checker.push("xab") == ("x", False)
    assert checker.push("d") == ("abd", False)


def test_the_earliest_of_several_stop_strings_wins():
    assert run(["later", "soon"], ["a soon b later"]) == ("a ", True)


def test_the_stop_string_that_was_found_is_known():
    checker = StopChecker(["later", "soon"])
    checker.push("a so")
    assert checker.found is None
    checker.push("on b later")
    assert checker.found == "soon"


def test_a_stop_string_that_begins_inside_another_one_is_found():
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", True)


def test_flush_gives_back_what_was_held():
    assert run(["xyz"], ["ends in xy"]) == ("ends in xy", False)


def test_without_stop_strings_everything_passes_at_once():
    checker = StopChecker([""])
    assert checker.push("abc") == ("abc", False)
    assert checker.flush() == ""


@given(
    text=st.text("ab<", max_size=30),
    stops=st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
def test_any_division_into_pieces_gives_the_text_before_the_earliest_end(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    shown, is_stopped = run(stops, pieces)
    assert is_stopped == any(stop in text for stop in stops)
    assert text.startswith(shown)
    # The stop string whose last character comes first ends the text, as a reader would see it.
    if is_stopped:
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)
    else:
        assert shown == text
