"""The bounded JSON parser: what it accepts, and that limits sit where they should."""

from __future__ import annotations

import json
from typing import Any

import pytest
from broken_rules import breaks
from hypothesis import given
from hypothesis import strategies as st

from zse.format.errors import Rule
from zse.format.header_json import MAX_DEPTH, _brackets, dump_canonical, parse_object

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab"\\[{]}é'), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text('ab"\\[{]},:é\n'), VALUES, max_size=4))
def test_parsing_is_the_inverse_of_dumping(document: dict[str, Any]) -> None:
    assert parse_object(dump_canonical(document)) == document
    assert parse_object(json.dumps(document).encode()) == document


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_deepest_allowed_nesting_is_accepted_and_one_more_is_not() -> None:
    parse_object(nested(MAX_DEPTH))
    with breaks(Rule.HEADER_TOO_DEEP):
        parse_object(nested(MAX_DEPTH + 1))


def test_brackets_inside_strings_do_not_count_as_depth() -> None:
    text = '[{"' * 1000
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}


@given(st.text(alphabet='"[]{}\\ax,', max_size=24).map(str.encode))
def test_brackets_are_found_the_short_way_as_they_are_the_long_way(raw: bytes) -> None:
    expected, is_inside, is_escaped = [], False, False
    for byte in raw:
        if is_inside:
            is_inside = is_escaped or byte != ord('"')
            is_escaped = not is_escaped and byte == ord("\\")
        elif byte == ord('"'):
            is_inside = True
        elif byte in b"[]{}":
            expected.append(byte)
    assert _brackets(raw) == bytes(expected)


def test_surrogate_pairs_are_accepted_and_lone_ones_are_not() -> None:
    assert parse_object(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    with breaks(Rule.BAD_HEADER_ENCODING):
        parse_object(b'{"a":"\\ude00"}')


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x"], ids=repr)
def test_values_without_a_json_form_are_not_written(value: object) -> None:
    with breaks(Rule.BAD_HEADER_JSON):
        dump_canonical({"a": value})


@pytest.mark.parametrize("content", [b'"' + b'\\"' * 200_000, b'"a\\' * 100_000, b"\\" * 99])
def test_unfinished_strings_are_scanned_once(content: bytes) -> None:
    with breaks(Rule.BAD_HEADER_JSON):
        parse_object(b'{"a":' + content)
