"""Transcripts of gpt-oss in chats: reasoning, text and calls, whole and streamed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from zse.text.dialect import Dialect
from zse.text.tools.harmony import FORMAT

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
THOUGHT = "<|channel|>analysis<|message|>Paris, then.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
ANSWER = "<|channel|>final<|message|>It is sunny.<|return|>"
TRANSCRIPTS = {
    "an answer": (ANSWER, "", "It is sunny.", []),
    "a thought and an answer": (THOUGHT + ANSWER, "Paris, then.", "It is sunny.", []),
    "a thought and a call": (THOUGHT + CALL, "Paris, then.", "", ['{"city": "Paris"}']),
    "a preamble and a call": (
        f"<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant{CALL}",
        "",
        "One moment.",
        ['{"city": "Paris"}'],
    ),
    "a call of a tool that nobody offered": (
        CALL.replace("get_weather", "shell"),
        "",
        '{"city": "Paris"}',
        [],
    ),
    "messages without ends": (
        f"<|channel|>analysis<|message|>Paris, then.{ANSWER}",
        "Paris, then.",
        "It is sunny.",
        [],
    ),
    "no form at all": ("It is sunny.", "", "It is sunny.", []),
    "a header alone": ("<|start|>assistant<|channel|>final", "", "", []),
}


@pytest.fixture
def call(make_caller, scripted):
    controls = {text: 5 + index for index, text in enumerate(FORMAT.markers)}
    dialect = Dialect(calls="harmony", controls=controls)
    return make_caller(replace(scripted.scripted_model(), dialect=dialect))


def whole(response):
    message = response.json()["choices"][0]["message"]
    arguments = [each["function"]["arguments"] for each in message.get("tool_calls", ())]
    return message.get("reasoning_content", ""), message["content"] or "", arguments


def streamed(response):
    thought, content, arguments = "", "", []
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            delta = choice["delta"]
            thought += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            for each in delta.get("tool_calls", ()):
                arguments += [""] * (each["index"] + 1 - len(arguments))
                arguments[each["index"]] += each["function"]["arguments"]
    return thought, content, arguments


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_is_taken_apart_whole_and_streamed(name, call):
    text, *expected = TRANSCRIPTS[name]
    fields = {"tools": [WEATHER]}
    assert whole(call.chat("say:" + text, **fields)) == tuple(expected)
    assert streamed(call.chat("say:" + text, stream=True, **fields)) == tuple(expected)


def test_without_tools_channels_are_read_and_calls_are_text(call):
    assert whole(call.chat("say:" + THOUGHT + ANSWER)) == ("Paris, then.", "It is sunny.", [])
    assert whole(call.chat("say:" + CALL)) == ("", '{"city": "Paris"}', [])


def test_a_call_ends_an_answer_as_a_call(call):
    response = call.chat("say:" + THOUGHT + CALL, tools=[WEATHER])
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
