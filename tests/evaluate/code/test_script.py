"""A model's script: its definitions stay, its own tests and cut ends go, anything else is left."""

from __future__ import annotations

import random

import pytest

from zse.evaluate.code.script import MOST_CHARACTERS, definitions_of

SCRIPT = """from typing import List

LIMIT: int = 3

@staticmethod
def helper(x):
    return x + LIMIT

def wanted(x: List[int]):
    \"\"\"assert in a text stays\"\"\"
    return helper(x)
"""


def test_tests_of_the_models_own_are_left_out_and_definitions_stay() -> None:
    tests = "\n# Test cases\nassert wanted([]) == 17\nprint(wanted([1]))\nif True:\n    1 / 0\n"
    found = definitions_of(SCRIPT + tests, "wanted")
    assert found.replace("\n\n", "\n") == SCRIPT.replace("\n\n", "\n")


def test_a_script_that_was_cut_in_its_tests_is_taken_up_to_there() -> None:
    cut = SCRIPT + "\nassert wanted([1, 2]) == [\nprint(wanted("
    assert definitions_of(cut, "wanted") == definitions_of(SCRIPT, "wanted")


def test_a_script_that_was_cut_in_the_function_itself_is_left_as_it_is() -> None:
    cut = "def wanted(x):\n    return (x +"
    assert definitions_of(cut, "wanted") == cut


def test_a_function_may_be_a_name_that_is_given_a_value() -> None:
    assert definitions_of("wanted = lambda x: x\nprint(1)", "wanted") == "wanted = lambda x: x\n"


def test_a_script_without_the_function_is_left_as_it_is() -> None:
    assert definitions_of("print(1)\n", "wanted") == "print(1)\n"


def test_two_statements_on_a_line_are_taken_once() -> None:
    script = "a = 1; b = 2\ndef wanted(): return a\n"
    assert definitions_of(script, "wanted").count("b = 2") == 1


@pytest.mark.parametrize(
    "script",
    ["-" * 19_000 + "1", "(" * 9_000, "not " * 4_000 + "1", "x" + ".a" * 9_000, "\x00", "\ufeff",
     "lambda:" * 2_500 + "1", "def wanted(:\n" * 900, "a\n" * 9_000, "\x0cdef wanted(): 1"],
)  # fmt: skip
def test_nothing_that_a_model_writes_breaks_it(script: str) -> None:
    assert isinstance(definitions_of(script, "wanted"), str)


def test_what_is_very_long_is_not_looked_into() -> None:
    script = SCRIPT + "assert False\n" * MOST_CHARACTERS
    assert definitions_of(script, "wanted") == script


def test_what_is_left_defines_the_function_whatever_stands_around_it() -> None:
    draw = random.Random(7)
    pieces = [
        "x = 1",
        "assert x",
        "import os",
        "\u2028y = 2",
        "class A:\n    z = 1",
        "for i in ():\n  1",
    ]
    for _ in range(200):
        around = [draw.choice(pieces) for _ in range(draw.randrange(8))]
        around.insert(draw.randrange(len(around) + 1), "def wanted():\n    return 42")
        script = "\n".join(around) + draw.choice(["", "\nassert (", "\r\n", "\n)"])
        scope: dict[str, object] = {}
        try:
            exec(compile(definitions_of(script, "wanted"), "script", "exec"), scope)
        except SyntaxError:
            assert "\u2028" in script  # which no parser takes, whatever is cut
            continue
        assert callable(scope["wanted"])
