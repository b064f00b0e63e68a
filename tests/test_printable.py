from __future__ import annotations

from zse.printable import printable

HOSTILE = "a\x1b[2Jb\nc\x9b\u202e"


def test_what_commands_a_terminal_is_shown_by_its_number():
    assert printable(HOSTILE) == "a\\u001b[2Jb\\u000ac\\u009b\\u202e"


def test_what_may_stay_stays_and_the_rest_gets_the_stand_in():
    assert printable(HOSTILE, keep="\n", instead="?") == "a?[2Jb\nc??"


def test_letters_of_every_language_and_spaces_stay():
    assert printable("Zürich 東京 🙂") == "Zürich 東京 🙂"
