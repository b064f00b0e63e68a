"""A turn's events: one sequence for each choice, whoever writes them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from zse.text.dialect import Dialect

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALLS = '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{}'


@pytest.fixture
def mistral(make_caller, scripted):
    """A caller of a model with control tokens, and its engine."""
    dialect = Dialect(calls="mistral", controls={"[TOOL_CALLS]": 5, "[ARGS]": 6, "[INST]": 7})
    model = replace(scripted.scripted_model(), dialect=dialect)
    return make_caller(model), model.engine


def test_ids_of_calls_are_fresh_and_as_long_as_the_template_wants_them(mistral):
    call, _ = mistral
    choices = call.chat("say:" + CALLS, tools=TOOLS, n=2).json()["choices"]
    ids = [each["id"] for choice in choices for each in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4
    assert {len(each) for each in ids} == {9}
    assert all(each.isalnum() for each in ids)


def test_the_engine_shows_the_control_tokens_that_answers_are_read_by(mistral):
    call, engine = mistral
    call.chat("say:a", tools=TOOLS)
    call.chat("say:a")
    assert [params.shown_special_ids for _, params, *_ in engine.seen] == [(5, 6), ()]


def test_each_choice_of_a_stream_ends_once_and_after_its_calls(mistral):
    call, _ = mistral
    response = call.chat("say:Hm." + CALLS, tools=TOOLS, n=3, stream=True)
    kinds = {0: [], 1: [], 2: []}
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            delta = choice["delta"]
            kind = "role" if "role" in delta else "end" if choice["finish_reason"] else min(delta)
            if kind not in kinds[choice["index"]][-1:]:
                kinds[choice["index"]].append(kind)
    assert set(map(tuple, kinds.values())) == {("role", "content", "tool_calls", "end")}


def test_logprobs_of_calls_come_with_the_last_part(mistral):
    call, _ = mistral
    fields = {"tools": TOOLS, "logprobs": True}
    whole = call.chat("say:Hm." + CALLS, **fields).json()["choices"][0]["logprobs"]["content"]
    streamed = []
    for line in call.chat("say:Hm." + CALLS, stream=True, **fields).text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            streamed += (choice["logprobs"] or {"content": ()})["content"]
    assert [each["token"] for each in whole] == list("Hm." + CALLS)
    assert streamed == whole
