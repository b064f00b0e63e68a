"""Splitting streamed answers into text and calls."""

import pytest

from zse.text.pieces import Arguments, CallOpening, Said
from zse.text.tools import ToolCall, ToolReader, parse_tool_calls

ONE = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TWO = ONE + '\n<tool_call>{"name": "g", "arguments": {}}</tool_call>'


def read(text, size):
    """Push a text in pieces; return its text and its calls."""
    reader = ToolReader()
    pieces = []
    for start in range(0, len(text), size):
        pieces += reader.push(text[start : start + size])
    pieces += reader.finish()
    said = "".join(piece.text for piece in pieces if isinstance(piece, Said))
    names = [piece.name for piece in pieces if isinstance(piece, CallOpening)]
    arguments = [piece.text for piece in pieces if isinstance(piece, Arguments)]
    calls = [ToolCall(name=n, arguments_json=a) for n, a in zip(names, arguments, strict=True)]
    return said, calls


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "text", [ONE, TWO, "Let me see. " + ONE, '{"name": "f", "parameters": {}}']
)
def test_pieces_of_any_size_give_the_calls_of_the_whole(text, size):
    said, calls = read(text, size)
    whole = parse_tool_calls(text)
    assert said.strip() == (whole.content or "")
    assert tuple(calls) == whole.tool_calls


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "a < b, <tool, [TOOL",
        "<tool_call>not json</tool_call> then",
        "<tool_call>{cut",
        '{"x": 1}',
        "<",
    ],
)
def test_what_is_no_call_comes_out_as_it_went_in(text, size):
    assert read(text, size) == (text, [])


def test_text_flows_before_a_call_and_a_closed_call_does_not_wait_for_the_end():
    reader = ToolReader()
    assert reader.push("Let me <") == [Said("Let me ")]
    assert reader.push("b> see") == [Said("<b> see")]
    assert reader.push(ONE) == [CallOpening("f"), Arguments('{"a": 1}')]
    assert reader.finish() == []
