"""/api/tools: listed, run by hand, and found in what a model wrote."""

from __future__ import annotations

import pytest

from zse.option import with_values

TEXT = 'Well.<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'


@pytest.fixture
def tools(state, call):
    state.options = with_values(state.options, {"tools": ("calculator",)})
    return call


def test_tools_are_listed_in_both_forms(tools):
    (listed,) = tools("GET", "/api/tools/").json()["tools"]
    (function,) = tools("GET", "/api/tools/openai/functions").json()["tools"]
    assert function == {"type": "function", "function": listed}
    assert listed["parameters"]["required"] == ["expression"]
    assert tools("GET", "/api/tools").status_code == 200


def test_a_tool_is_run_by_hand(tools, check_error):
    asked = {"name": "calculator", "arguments": {"expression": "6*7"}}
    assert tools("POST", "/api/tools/execute", json=asked).json()["output"] == "42"
    response = tools("POST", "/api/tools/execute", json={"name": "string_ops"})
    check_error(response, 400, param="name")


def test_calls_are_found_in_a_text_and_run(tools):
    found = tools("POST", "/api/tools/parse", json={"text": TEXT}).json()
    assert found["text"] == "Well."
    assert [call["name"] for call in found["calls"]] == ["calculator"]
    processed = tools("POST", "/api/tools/process", json={"text": TEXT}).json()
    assert [result["output"] for result in processed["results"]] == ["42"]
    assert {**processed, "results": None} == {**found, "results": None}


def test_without_tools_nothing_is_a_call(call):
    assert call("GET", "/api/tools/").json() == {"tools": []}
    found = call("POST", "/api/tools/process", json={"text": TEXT}).json()
    assert (found["text"], found["calls"], found["results"]) == (TEXT, [], [])


def test_an_unknown_field_is_refused(call, check_error):
    response = call("POST", "/api/tools/parse", json={"text": "", "texts": ""})
    check_error(response, 400, param="texts")


def test_more_calls_than_an_answer_may_have_are_not_run(tools, check_error):
    assert (
        len(tools("POST", "/api/tools/process", json={"text": TEXT * 16}).json()["results"]) == 16
    )
    response = tools("POST", "/api/tools/process", json={"text": TEXT * 17})
    check_error(response, 400, param="text")
