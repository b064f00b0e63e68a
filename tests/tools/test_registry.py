"""The registry: schemas of what tools take, and calls that end whatever happens."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest

from zse.errors import UsageError
from zse.tools.builtin import builtin_tools
from zse.tools.registry import Tool, ToolError, ToolLimits, ToolRegistry


class Words(msgspec.Struct):
    text: str
    times: int = 1


def registry(run, **limits):
    return ToolRegistry([Tool("say", "Says it.", Words, run)], ToolLimits(**limits))


def test_a_definition_is_openais_with_the_schema_of_the_arguments():
    (definition,) = registry(lambda _: "").definitions()
    assert definition["type"] == "function"
    assert definition["function"]["name"] == "say"
    assert definition["function"]["parameters"] == {
        "type": "object",
        "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
        "required": ["text"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("arguments", ['{"text": "a", "times": 2}', {"text": "a", "times": 2}])
def test_arguments_are_an_object_or_its_text(arguments):
    result = registry(lambda asked: asked.text * asked.times).execute("say", arguments)
    assert (result.output, result.is_error) == ("aa", False)


@pytest.mark.parametrize(
    "arguments", ["{", "[" * 99_999, '{"text": 1}', "{}", "[]", {"times": 2}, "x" * 70_000]
)
def test_arguments_that_do_not_fit_are_an_answer_for_the_model(arguments):
    result = registry(lambda _: pytest.fail("it ran")).execute("say", arguments)
    assert result.is_error
    assert result.output.startswith("error: the arguments")


def test_what_fails_is_told_without_its_trace():
    def fail(asked):
        raise ToolError("no such thing") if asked.times > 1 else KeyError("secret")

    tools = registry(fail)
    assert tools.execute("say", {"text": "", "times": 2}).output == "error: no such thing"
    assert "secret" not in tools.execute("say", {"text": ""}).output


def test_what_takes_too_long_is_left():
    free = threading.Event()
    tools = registry(lambda _: free.wait(30), timeout_seconds=0.05)
    result = tools.execute("say", {"text": ""})
    free.set()
    assert result.is_error
    assert "longer than 0.05 s" in result.output


def test_a_long_output_is_cut_and_says_so():
    result = registry(lambda _: "x" * 100, output_characters=10).execute("say", {"text": ""})
    assert result.output == "x" * 10 + "\n[cut: 100 characters]"


def test_names_are_known_and_of_one_tool_each():
    tools = registry(lambda _: "")
    with pytest.raises(UsageError, match="no tool 'sing'"):
        tools.execute("sing", {})
    tool = Tool("say", "", Words, lambda _: "")
    with pytest.raises(UsageError, match="two tools"):
        ToolRegistry([tool, tool])


def test_all_are_those_that_reach_nothing_outside():
    names = [tool.name for tool in builtin_tools(["all"])]
    assert names == ["calculator", "datetime", "parse_json", "string_ops"]
    named = builtin_tools(["all", "calculator"], hosts=["a.example"])
    assert [tool.name for tool in named] == [*names, "http_get"]


@pytest.mark.parametrize(("name", "words"), [("dance", "no tool"), ("http_get", "no host")])
def test_a_tool_that_is_not_there_or_may_do_nothing_is_refused(name, words):
    with pytest.raises(UsageError, match=words):
        builtin_tools([name])


def test_every_schema_is_json():
    json.dumps(ToolRegistry(builtin_tools(["all"], hosts=["a.example"])).definitions())
