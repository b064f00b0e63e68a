"""How early an object is known to be no call, and how soon a call is handed out."""

from __future__ import annotations

import pytest

from zse.text.dialect import Dialect
from zse.text.pieces import Arguments, CallOpening, Said


@pytest.fixture
def reader():
    shape = Dialect(calls="llama3").shape("", has_tools=True)
    return shape.reading({"get_weather": {}, "get_time": {}}).make_reader()


@pytest.mark.parametrize(
    "text",
    ['{"x', '{"na', '{ "answer', '{"name": "A', '{"name": "get_weathers', '{"type": "o', "{}", "{1", '{"name": {', '{"name": "get_time" }'],
)  # fmt: skip
def test_what_is_no_call_is_said_at_the_first_character_that_shows_it(reader, text):
    if text.endswith("na"):
        assert reader.push(text) == []
        assert reader.push("t") == [Said('{"nat')]
    else:
        said = "".join(piece.text for piece in reader.push(text))
        assert said == text


def test_a_call_is_handed_out_as_soon_as_its_arguments_begin(reader):
    assert reader.push('{"name": "get_time", "parameters": ') == []
    assert reader.push('{"a') == [CallOpening("get_time"), Arguments('{"a')]
    assert reader.push('": 1') == [Arguments('": 1')]
    assert reader.push("}}") == [Arguments("}")]
    assert reader.finish() == []
