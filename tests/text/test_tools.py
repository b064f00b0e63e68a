"""Tool calls in the usual written forms; anything else stays text."""

from __future__ import annotations

import json

import pytest

from zse.text.tools import ParsedMessage, ToolCall, parse_tool_calls

PARIS = ToolCall(name="get_weather", arguments_json='{"city": "Paris"}')
ROME = ToolCall(name="get_weather", arguments_json='{"city": "Rome"}')
ONE = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TWO = '{"name": "get_weather", "arguments": {"city": "Rome"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{ONE}\n</tool_call>",
        f"<tool_call>{ONE}</tool_call>",
        f"<tool_call>\n{ONE}",
        ONE,
        ONE.replace("arguments", "parameters"),
        f"<|python_tag|>{ONE}",
        f"[TOOL_CALLS] [{ONE}]",
        f"[TOOL_CALLS]{ONE}",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        '{"type": "function", "function": ' + ONE + "}",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        json.dumps({"name": "get_weather", "arguments": '{"city": "Paris"}'}),
    ],
)
def test_one_call_is_read_in_every_usual_form(text):
    assert parse_tool_calls(text) == ParsedMessage(content=None, tool_calls=(PARIS,))


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
        f"{ONE}; {TWO}",
        f"{ONE}\n{TWO}",
        f"[TOOL_CALLS] [{ONE}, {TWO}]",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_weather[ARGS]{"city":"Rome"}',
    ],
)
def test_several_calls_keep_their_order(text):
    assert parse_tool_calls(text) == ParsedMessage(content=None, tool_calls=(PARIS, ROME))


def test_text_around_a_call_is_the_content():
    parsed = parse_tool_calls(f"Let me look.\n<tool_call>\n{ONE}\n</tool_call>\n")
    assert parsed == ParsedMessage(content="Let me look.", tool_calls=(PARIS,))


def test_a_closing_tag_inside_an_argument_does_not_end_the_call():
    call = json.dumps({"name": "write", "arguments": {"text": "</tool_call> {"}})
    parsed = parse_tool_calls(f"<tool_call>{call}</tool_call>")
    assert json.loads(parsed.tool_calls[0].arguments_json) == {"text": "</tool_call> {"}
    assert parsed.content is None


def test_letters_of_every_script_stay_as_they_are():
    call = '<tool_call>{"name": "f", "arguments": {"city": "Köln 東京"}}</tool_call>'
    assert parse_tool_calls(call).tool_calls[0].arguments_json == '{"city": "Köln 東京"}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Paris is sunny.",
        '{"name": "Alice", "age": 30}',
        '{"name": "x", "arguments": [1]}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "f"}',
        ONE + " and more",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "f", "argum',
        "[TOOL_CALLS] [1, 2]",
        "[TOOL_CALLS]",
        "<|python_tag|>print(1)",
        "[" * 5000,
        "<tool_call>" + "[" * 100_000,
        "<tool_call>" * 50,
    ],
)
def test_what_is_no_call_stays_text(text):
    assert parse_tool_calls(text) == ParsedMessage(content=text, tool_calls=())


def test_a_broken_call_beside_a_good_one_stays_in_the_content():
    parsed = parse_tool_calls(f"<tool_call>oops</tool_call><tool_call>{ONE}</tool_call>")
    assert parsed.tool_calls == (PARIS,)
    assert parsed.content == "<tool_call>oops</tool_call>"
