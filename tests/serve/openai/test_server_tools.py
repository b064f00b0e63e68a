"""Tools that the server runs: called, run, and the answer goes on, whole and streamed alike."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys

import pytest

from zse.option import with_values
from zse.serve.openai import tool_turns
from zse.serve.toolbox import Toolbox
from zse.server_options import ServeOptions
from zse.tools.registry import ToolResult


def called(name, **arguments):
    text = json.dumps({"name": name, "arguments": arguments})
    return f"say:<tool_call>{text}</tool_call>"


# What the tool returns is the last thing that the scripted model is told to say.
FINISH = called("string_ops", operation="reverse", text="dne ehT:yas")
AGAIN = called("calculator", expression="6*7")


@pytest.fixture
def ask(state, call):
    """Return what asks a server with tools."""
    state.options = with_values(state.options, {"tools": ("all",), "tool_rounds": 3})
    return lambda text, **fields: call.chat(text, **{"server_tools": True, **fields})


def message_of(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def test_a_call_is_run_and_the_answer_goes_on(ask):
    response = ask(FINISH)
    message = message_of(response)
    assert message["content"] == "The end"
    assert "tool_calls" not in message
    (ran,) = message["server_tools"]
    assert (ran["name"], ran["output"], ran["is_error"]) == ("string_ops", "say:The end", False)
    assert json.loads(ran["arguments"])["operation"] == "reverse"
    assert response.json()["choices"][0]["finish_reason"] == "stop"


def test_calls_of_one_round_run_side_by_side_and_are_told_in_order(ask, monkeypatch):
    async def run(_toolbox, name, arguments, **_):
        async with asyncio.timeout(60):
            await both.wait()  # which neither passes alone
        return ToolResult(name=name, output=f"say:{arguments}", is_error=False, seconds=0.0)

    both = asyncio.Barrier(2)
    monkeypatch.setattr(Toolbox, "run", run)
    message = message_of(ask(AGAIN + FINISH.removeprefix("say:")))
    ran = message["server_tools"]
    assert [one["name"] for one in ran] == ["calculator", "string_ops"]
    assert [one["output"] for one in ran] == [f"say:{one['arguments']}" for one in ran]


def test_a_stream_says_the_same(ask):
    text, ran, reasons = "", [], []
    for line in ask(FINISH, stream=True).text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            text += choice["delta"].get("content") or ""
            ran += choice["delta"].get("server_tools", [])
            reasons.append(choice["finish_reason"])
    assert text == "The end"
    assert [one["output"] for one in ran] == ["say:The end"]
    assert [reason for reason in reasons if reason] == ["stop"]


def test_the_tokens_of_all_rounds_are_counted(ask, call):
    alone = call.chat("say:The end").json()["usage"]
    usage = ask(FINISH).json()["usage"]
    assert usage["completion_tokens"] > alone["completion_tokens"] + len("<tool_call>")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_model_that_calls_without_end_is_made_to_answer(ask):
    message = message_of(ask(AGAIN))
    assert [one["output"] for one in message["server_tools"]] == ["42"] * 3
    assert "tool_call" in message["content"]  # it is text where nothing is offered


NAMED = {"type": "function", "function": {"name": "string_ops"}}
ALLOWED = {"mode": "required", "tools": [NAMED]}


@pytest.mark.parametrize(
    "choice", ["required", NAMED, {"type": "allowed_tools", "allowed_tools": ALLOWED}]
)
def test_a_call_that_is_forced_is_forced_once(ask, choice, monkeypatch):
    asked, open_turn = [], tool_turns.open_turn

    def noted(request, mapping, body):
        asked.append(str(body.tool_choice))
        return open_turn(request, mapping, body)

    monkeypatch.setattr(tool_turns, "open_turn", noted)
    message = message_of(ask(FINISH, tool_choice=choice))
    assert [one["name"] for one in message["server_tools"]] == ["string_ops"]
    assert message["content"] == "The end"
    first, second = asked
    assert first == str(choice)
    assert "auto" in second
    assert "required" not in second


def test_a_tool_that_fails_is_told_to_the_model(ask):
    (ran, *_) = message_of(ask(called("calculator", expression="1/0")))["server_tools"]
    assert ran["is_error"]
    assert ran["output"].startswith("error: ")


def test_each_call_is_logged_without_its_arguments(ask, caplog):
    with caplog.at_level(logging.INFO, "zse.serve.tools"):
        response = ask(FINISH)
    (line,) = [record for record in caplog.records if record.message == "a tool ran"]
    assert line.tool == "string_ops"
    assert line.request_id == response.headers["x-request-id"]
    assert "dne ehT" not in str(line.__dict__)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_tools": ["dance"]}, "server_tools"),
        ({"server_tools": True, "n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "server_tools"),
        ({"server_tools": "all"}, "server_tools"),
    ],
)
def test_what_cannot_be_is_refused(ask, check_error, fields, param):
    check_error(ask("Hello", **fields), 400, param=param)


def test_a_server_without_tools_says_so(call, check_error):
    assert ServeOptions().server_tools.tools == ()
    said = check_error(call.chat("Hello", server_tools=True), 400, param="server_tools")
    assert "--tools" in said


@pytest.mark.parametrize(("name", "words"), [("dance", "no tool"), ("http_get", "no host")])
def test_a_tool_that_cannot_run_ends_the_start(name, words):
    command = [sys.executable, "-m", "zse.serve", "tiny", "--port", "0", "--tools", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_some_may_be_asked_for(ask):
    message = message_of(ask(AGAIN, server_tools=["string_ops"]))
    assert "server_tools" not in message  # what was not offered is no call
