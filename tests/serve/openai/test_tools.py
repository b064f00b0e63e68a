"""Tools in chats: which are taken, what is a call, and that whole and streamed answers agree."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from zse.server_options import TOOL_PARSERS
from zse.text.dialect import Dialect

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
TAGGED = PARIS.replace("Paris", "</tool_call>")


def streamed(response):
    """Put the chunks of a stream together, as client libraries do."""
    message, reason = {"content": "", "reasoning_content": "", "tool_calls": []}, []
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"]
                    assert call["type"] == "function"
                    message["tool_calls"].append([call["function"]["name"], ""])
                assert call["index"] == len(message["tool_calls"]) - 1
                message["tool_calls"][-1][1] += call["function"]["arguments"]
            reason += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(reason) == 1
    return message, reason[0]


def whole(response):
    choice = response.json()["choices"][0]
    message = choice["message"]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    assert all(call["id"] for call in message.get("tool_calls", ()))
    parts = {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [[function["name"], function["arguments"]] for function in functions],
    }
    return parts, choice["finish_reason"]


@pytest.fixture
def both(call):
    """Ask whole and streamed; the answers must say the same."""

    def ask(text, **fields):
        fields.setdefault("tools", [WEATHER, TIME])
        first = whole(call.chat("say:" + text, **fields))
        assert streamed(call.chat("say:" + text, stream=True, **fields)) == first
        return first

    return ask


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (PARIS, "", [["get_weather", '{"city": "Paris"}']]),
        (TAGGED, "", [["get_weather", '{"city": "</tool_call>"}']]),
        (f"I look.\n{PARIS}\n{NOW}", "I look.", [["get_weather", '{"city": "Paris"}'], ["get_time", "{}"]]),
        ('{"answer": 42}', '{"answer": 42}', []),
        (PARIS.replace("get_weather", "rm"), PARIS.replace("get_weather", "rm"), []),
    ],
)  # fmt: skip
def test_whole_and_streamed_answers_have_the_same_calls(both, text, content, calls):
    message, reason = both(text)
    assert message == {"content": content, "reasoning_content": "", "tool_calls": calls}
    assert reason == ("tool_calls" if calls else "stop")


def test_an_answer_that_begins_with_a_brace_is_streamed_as_it_comes(call):
    response = call.chat('say:{"answer": [1, 2, 3]}', tools=[WEATHER], stream=True)
    assert response.text.count('"content":') > 10


def test_a_cut_call_ends_with_length_and_an_answer_without_parallel_calls_has_one(both):
    message, reason = both(PARIS, max_tokens=60)
    assert reason == "length"
    assert message["tool_calls"] == [["get_weather", '{"city": "P']]
    message, reason = both(PARIS + NOW, parallel_tool_calls=False)
    assert message["tool_calls"] == [["get_weather", '{"city": "Paris"}']]
    assert reason == "tool_calls"


def test_a_call_of_the_tool_that_was_named_ends_with_stop(both):
    named = {"type": "function", "function": {"name": "get_time"}}
    assert both(NOW, tool_choice=named)[1] == "stop"
    assert both(NOW, tool_choice="required")[1] == "tool_calls"


def test_only_the_allowed_tools_are_offered(both):
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert both(NOW, tool_choice=choice)[0]["tool_calls"] == [["get_time", "{}"]]
    assert both(PARIS, tool_choice=choice)[0]["content"] == PARIS


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": []}, "tools", "empty_array"),
        ({"tools": [TIME] * 129}, "tools", "array_above_max_length"),
        ({"tools": [WEATHER, TIME, WEATHER]}, "tools[2].function.name", None),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice", None),
        ({"tool_choice": {"type": "function"}}, "tool_choice", None),
        ({"tool_choice": {"type": "other"}}, "tool_choice.type", None),
        ({"tool_choice": "sometimes"}, "tool_choice", None),
        *(
            ({"tools": [{"type": "function", "function": {"name": name}}]}, "tools[0].function.name", "invalid_value")
            for name in ("", "a b", "a.b", "ü", "x" * 65, "f\n", "<|im_end|>")
        ),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_offered_are_refused(call, check_error, fields, param, code):
    response = call.chat(**{"tools": [WEATHER, TIME], **fields})
    check_error(response, 400, param=param, code=code)


ASSISTANT = {"role": "assistant", "content": None}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({**ASSISTANT, "function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
        ({**ASSISTANT, "audio": {"id": "a"}}, "audio", "unsupported_parameter"),
        ({"role": "user", "content": "a", "reasoning_content": "b"}, "reasoning_content", None),
        ({"role": "user", "content": "a", "refusal": "b"}, "refusal", None),
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "tool_calls", None),
        ({**ASSISTANT, "tool_calls": [{**CALL, "function": {"name": "a b"}}]}, "tool_calls[0].function.name", "invalid_value"),
        ({"role": "tool", "content": "a"}, "tool_call_id", "missing_required_parameter"),
    ],
)  # fmt: skip
def test_fields_of_messages_are_refused_by_name(call, check_error, message, param, code):
    response = call.chat(messages=[message])
    assert response.json()["error"]["param"] == f"messages[0].{param}"
    assert response.json()["error"]["code"] in (code, None)


def test_a_refusal_of_the_history_is_its_text(call):
    part = {"type": "refusal", "refusal": "say:No."}
    history = [{"role": "assistant", "content": [part]}]
    assert whole(call.chat(messages=history))[0]["content"] == "No."
    history = [{"role": "assistant", "content": None, "refusal": "say:No."}]
    assert whole(call.chat(messages=history))[0]["content"] == "No."


def test_reasoning_is_told_apart_and_counted(thinker):
    call, _ = thinker()
    response = call.chat()
    message, _ = whole(response)
    assert message == {"content": "Paris", "reasoning_content": "Hm.", "tool_calls": []}
    details = response.json()["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == len(">Hm.</think>")
    assert streamed(call.chat(stream=True))[0] == message


@pytest.mark.parametrize(
    ("controls", "effort", "variables"),
    [
        ({"switch": "enable_thinking"}, "none", {"enable_thinking": False}),
        ({"switch": "thinking"}, "low", {"thinking": True}),
        ({"has_effort": True}, "minimal", {"reasoning_effort": "low"}),
        ({"has_effort": True}, "none", None),
        ({}, "high", None),
    ],
)
def test_an_effort_sets_what_the_template_reads(thinker, controls, effort, variables):
    call, template = thinker(**controls)
    response = call.chat(reasoning_effort=effort)
    assert template.variables == (variables or {})
    assert response.headers.get("x-zse-ignored") == (None if variables else "reasoning_effort")


def test_reasoning_of_the_history_reaches_the_template_under_its_name(thinker):
    history = [{**ASSISTANT, "content": "a", "reasoning_content": "why"}]
    call, template = thinker(history_key="thinking")
    assert "x-zse-ignored" not in call.chat(messages=history).headers
    assert template.messages[0]["thinking"] == "why"
    call, _ = thinker()
    ignored = call.chat(messages=history).headers["x-zse-ignored"]
    assert ignored == "messages[].reasoning_content"


LAMP = {
    "type": "function",
    "function": {
        "name": "set_lamp",
        "parameters": {
            "type": "object",
            "properties": {"color": {"type": "string", "enum": ["red", "green"]}, "is_on": {"type": "boolean"}},
            "required": ["color", "is_on"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}  # fmt: skip


@pytest.fixture
def forced(make_caller, loaded):
    """Calls a model of random weights that writes calls in some form."""

    def make(calls, **dialect):
        return make_caller(replace(loaded, dialect=Dialect(calls=calls, **dialect)))

    return make


@pytest.mark.parametrize("calls", [name for name in TOOL_PARSERS if name not in ("auto", "none")])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "set_lamp"}}]
)
def test_a_forced_call_is_made_by_any_model_in_any_form(forced, calls, choice):
    call = forced(calls)
    fields = {"tools": [LAMP], "tool_choice": choice, "parallel_tool_calls": False, "seed": 3}
    for is_stream in (False, True):
        response = call.chat(stream=is_stream, max_completion_tokens=300, **fields)
        message, reason = streamed(response) if is_stream else whole(response)
        [[name, arguments]] = message["tool_calls"]
        assert (name, message["content"]) == ("set_lamp", "")
        found = json.loads(arguments)
        assert set(found) == {"color", "is_on"}
        assert found["color"] in ("red", "green")
        assert isinstance(found["is_on"], bool)
        assert reason == ("tool_calls" if choice == "required" else "stop")


def test_a_forced_call_comes_behind_reasoning_that_the_model_may_begin_with(forced):
    call = forced("hermes", reasoning="think")
    fields = {"tools": [LAMP], "tool_choice": "required", "parallel_tool_calls": False}
    bias = {str(byte): 5 for byte in b"</think>"}
    message, _ = whole(call.chat(max_completion_tokens=300, seed=1, logit_bias=bias, **fields))
    assert [name for name, _ in message["tool_calls"]] <= ["set_lamp"]


def test_a_form_beside_tools_is_the_form_of_what_is_no_call(forced):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    call = forced("mistral")
    for seed in range(4):
        fields = {"tools": [LAMP], "response_format": asked, "parallel_tool_calls": False}
        message, _ = whole(call.chat(max_completion_tokens=200, seed=seed, **fields))
        if message["tool_calls"]:
            assert message["tool_calls"][0][0] == "set_lamp"
        else:
            assert json.loads(message["content"])["a"] in (1, 2)


def test_a_schema_that_cannot_be_kept_is_refused_where_it_is_strict(forced, check_error):
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}}}  # fmt: skip
    for is_strict in (True, False):
        tools = [{"type": "function", "function": {**function, "strict": is_strict}}]
        response = forced("hermes").chat(tools=tools, tool_choice="required", max_tokens=5)
        assert response.status_code == 400
        check_error(response, 400, param="tools", code=response.json()["error"]["code"])


def test_strict_arguments_without_a_place_to_begin_are_reported(forced):
    response = forced("harmony").chat(tools=[LAMP], max_completion_tokens=2)
    assert response.headers["x-zse-ignored"] == "tools[].function.strict"
    response = forced("hermes").chat(tools=[LAMP], max_completion_tokens=2)
    assert "x-zse-ignored" not in response.headers
