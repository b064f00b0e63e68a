"""Every literal is read back as the value that was written, whatever the value holds."""

import ast
import json
import re
import shlex

import pytest
import yaml
from broken_rules import breaks
from hypothesis import given
from hypothesis import strategies as st

from zse.deploy.errors import DeployRule
from zse.deploy.quoting import (
    quote_docker,
    quote_hcl,
    quote_json,
    quote_python,
    quote_shell,
    quote_yaml,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
HOSTILE = (
    st.sampled_from(
        [
            'a"b',
            "a'b",
            "a\nb: c",
            "${x}",
            "$${x}",
            "%{ if }",
            "- x",
            "{{ y }}",
            "yes",
            "1e3",
            "0x1f",
        ]
    )
    | st.sampled_from(
        ["#c", " lead", "trail ", "\ttab", "\\", "\\u0041", "null", "~", "*a", "&a", "!t", "\u2028"]
    )
    | st.sampled_from(
        ["\x85", "\x7f", "\ufeff", "\U0001f600", "", "a: b", "|", ">", "%", "@{name}", "`", "\r\n"]
    )
)
STRINGS = HOSTILE | TEXT
SCALARS = STRINGS | st.booleans() | st.integers(-(10**9), 10**9) | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.integers(0, 3))
def test_yaml_reads_back_what_was_written(value, depth):
    indent = "  " * depth
    text = f"{indent}key: {quote_yaml(value, indent)}\n{indent}after: 1\n"
    assert yaml.safe_load(text) == {"key": value, "after": 1}


@given(VALUES)
def test_json_reads_back_what_was_written(value):
    assert json.loads(quote_json(value, "    ")) == value


@given(VALUES)
def test_python_reads_back_what_was_written(value):
    assert ast.literal_eval(quote_python(value)) == value


@given(st.lists(STRINGS, min_size=1, max_size=4))
def test_a_shell_splits_into_the_same_words(words):
    assert shlex.split(quote_shell(words)) == words


@given(STRINGS)
def test_an_hcl_string_has_no_interpolation_and_stands_on_one_line(text):
    written = quote_hcl(text)
    assert not re.search(r"[$%]\{", written)
    assert "\n" not in written
    assert json.loads(written) == text  # HCL's escapes are a part of JSON's


@given(VALUES)
def test_hcl_nests_lists_and_maps(value):
    if isinstance(value, list | dict):
        assert quote_hcl(value)[0] in "[{"


@pytest.mark.parametrize("value", ["a b", "a\nRUN x", "$X", "", "a#b", 3, '"a"'])
def test_a_dockerfile_takes_plain_words_only(value):
    with breaks(DeployRule.UNRENDERABLE_VALUE):
        quote_docker(value)


@pytest.mark.parametrize("quote", [quote_json, quote_yaml, quote_hcl, quote_python, quote_shell])
@pytest.mark.parametrize("value", ["a\x00b", "\ud800", {1: 2}, {"a": "\ud800"}, [b"x"]])
def test_what_no_file_can_hold_is_refused(quote, value):
    with breaks(DeployRule.UNRENDERABLE_VALUE):
        quote(value)
