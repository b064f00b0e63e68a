"""Bare texts become JSON by the types of a schema, and never run."""

from __future__ import annotations

import json
import warnings

import pytest

from zse.text.tools.literals import MAX_CHARACTERS, literal_json
from zse.text.tools.typed_values import typed_json, types_of


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, {"number", "null"}),
        ({"oneOf": [{"type": "array"}, "x"]}, {"array"}),
        ({"enum": ["a"]}, set()),
        ({"type": 3}, set()),
        ("string", set()),
        (None, set()),
    ],
)
def test_the_types_that_a_schema_names(schema, types):
    assert types_of(schema) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("3", {"integer"}, 3),
        (" 3\n", {"number"}, 3),
        ("3.5", {"integer"}, "3.5"),
        ("true", {"boolean"}, True),
        ("True", {"boolean"}, True),
        ("None", {"integer", "null"}, None),
        ("1", {"boolean"}, "1"),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': (1, 2)}", {"object"}, {"a": [1, 2]}),
        ("[1, 2", {"array"}, "[1, 2"),
        ("[" * 100_000, {"array"}, "[" * 100_000),
        ("{1: 2}", {"object"}, {"1": 2}),
        ("3", {"string", "integer"}, 3),
        ("three", {"string", "integer"}, "three"),
        ("NaN", {"number"}, "NaN"),
        ("-Infinity", {"integer", "number"}, "-Infinity"),
        ("[NaN]", {"array"}, "[NaN]"),
    ],
)
def test_a_text_becomes_what_its_type_says_or_stays_a_text(text, types, value):
    assert json.loads(typed_json(text, frozenset(types))) == value


@pytest.mark.parametrize(
    "text",
    ["print(1)", "a", "{1, 2}", "1j", "b'a'", "'" + "(" * 300, "(" * 1000, "9" * 6000,
     "[0," * MAX_CHARACTERS, "1e999", "", "'a", "lambda: 0", "[x for x in y]", "{'a': open('b')}"],
)  # fmt: skip
def test_what_is_no_literal_that_json_can_say_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        literal_json(text)


def test_a_long_text_is_no_large_literal_and_odd_escapes_warn_nobody():
    assert json.loads(literal_json(f"'{'a' * (2 * MAX_CHARACTERS)}'")) == "a" * (2 * MAX_CHARACTERS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert json.loads(literal_json(r"'\d'")) == r"\d"
