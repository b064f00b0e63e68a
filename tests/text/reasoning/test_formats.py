"""Reasoning at the beginning of an answer."""

from __future__ import annotations

import itertools

import pytest

from zse.text.dialect import Dialect
from zse.text.pieces import Said, Thought


def read(name, text, prompt="", cuts=()):
    reading = Dialect(reasoning=name).shape(prompt, has_tools=False).reading({})
    reader = reading.make_reader()
    pieces = []
    for start, end in itertools.pairwise([0, *cuts, len(text)]):
        pieces += reader.push(text[start:end])
    pieces += reader.finish()
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    return thought, "".join(piece.text for piece in pieces if isinstance(piece, Said))


@pytest.mark.parametrize(
    ("name", "prompt", "text", "thought", "said"),
    [
        ("think", "", "<think>\nWhy?\n</think>\n\nSo.", "Why?", "So."),
        ("think", "", "\n<think>Why?</think>So.\n", "Why?", "So."),
        ("think", "<think>\n", "Why?\n\nBecause.\n</think>\n\nSo.", "Why?\n\nBecause.", "So."),
        ("think", "", "<think>\n\n</think>\n\nSo.", "", "So."),
        ("think", "", "<think>cut", "cut", ""),
        ("think", "<think>", "cut </thi", "cut </thi", ""),
        ("think", "", "No <think>thoughts</think> here.\n", "", "No <think>thoughts</think> here.\n"),
        ("think", "", "<thin", "", "<thin"),
        ("think", "", "<think>a</think>b</think>c", "a", "b</think>c"),
        ("mistral", "", "[THINK]Why?[/THINK]So.", "Why?", "So."),
        ("seed", "<seed:think>", "Why?</seed:think>So.", "Why?", "So."),
        ("granite", "", "Here is my thought process: Why? Here is my response: So.", "Why?", "So."),
        ("granite", "", "Here's my thought process:\nWhy?\nHere's my response:\nSo.", "Why?", "So."),
        ("granite", "", "Here is my dog.", "", "Here is my dog."),
        ("think", "", "", "", ""),
    ],
)  # fmt: skip
def test_reasoning_is_told_from_the_answer_wherever_it_is_cut(name, prompt, text, thought, said):
    assert read(name, text, prompt) == (thought, said)
    assert read(name, text, prompt, range(1, len(text))) == (thought, said)
    for cut in range(len(text)):
        assert read(name, text, prompt, (cut,)) == (thought, said)
