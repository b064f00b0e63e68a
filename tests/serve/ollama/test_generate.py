"""Ollama's routes for answers in this process: lines, wholes, refusals."""

import json

import pytest

from zse.serve.ledger import Ledger
from zse.serve.state import AppState

CALL = 'say:Well <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


def lines_of(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def refusal_of(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    return body["error"]


def test_an_answer_streams_as_lines_unless_one_piece_is_asked_for(chat):
    lines = lines_of(chat("say:Hi"))
    assert [line["message"]["content"] for line in lines] == ["H", "i", ""]
    assert [line["done"] for line in lines] == [False, False, True]
    assert all(line["message"]["role"] == "assistant" for line in lines)
    whole = chat("say:Hi", stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": "Hi"}
    for end in (lines[-1], whole):
        assert (end["done"], end["done_reason"], end["eval_count"]) == (True, "stop", 2)
        assert all(type(end[name]) is int and end[name] >= 0 for name in DURATIONS)
    assert lines[-1]["prompt_eval_count"] == whole["prompt_eval_count"] > 0


def test_a_question_has_responses_in_place_of_messages(generate, state):
    lines = lines_of(generate("say:Hi", system="be good"))
    assert [line["response"] for line in lines] == ["H", "i", ""]
    assert state.model.engine.seen[-1][0].startswith("system: be good")
    assert generate("say:Hi", stream=False).json()["response"] == "Hi"


def test_a_raw_prompt_goes_past_the_template(generate, state):
    whole = generate("say:Hi", raw=True, stream=False).json()
    assert whole["response"] == "Hi"
    assert state.model.engine.seen[-1][0] == "say:Hi"


@pytest.mark.parametrize("text", ["say:Hello", CALL, "say: \n "])
def test_a_stream_adds_up_to_the_whole(chat, text):
    whole = chat(text, tools=TOOLS, stream=False).json()["message"]
    messages = [line["message"] for line in lines_of(chat(text, tools=TOOLS))]
    assert "".join(message["content"] for message in messages) == whole["content"]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        call["function"] for call in whole.get("tool_calls", ())
    ]


def test_the_arguments_of_a_call_are_an_object(chat):
    (call,) = chat(CALL, tools=TOOLS, stream=False).json()["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    assert call["id"]


def test_options_are_kept_to(chat):
    cut = chat("say:Hello", options={"num_predict": 2}, stream=False).json()
    assert (cut["message"]["content"], cut["done_reason"]) == ("He", "length")
    stopped = chat("say:Hello", options={"stop": ["zz", "lo"]}, stream=False).json()
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("Hel", "stop")
    free = chat("say:Hello", options={"num_predict": -1}, stream=False).json()
    assert free["message"]["content"] == "Hello"


def test_log_probabilities_stand_beside_their_text(real):
    body = {"model": "default", "messages": [{"role": "user", "content": "x"}]}
    asked = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3, "temperature": 0}}
    whole = real("POST", "/api/chat", json={**body, **asked, "stream": False}).json()
    assert [len(entry["top_logprobs"]) for entry in whole["logprobs"]] == [2, 2, 2]
    lines = lines_of(real("POST", "/api/chat", json={**body, **asked}))
    streamed = [entry for line in lines for entry in line.get("logprobs", ())]
    assert [entry["token"] for entry in streamed] == [e["token"] for e in whole["logprobs"]]


def test_an_answer_keeps_to_a_schema(real):
    properties = {"properties": {"a": {"enum": [7]}}, "additionalProperties": False}
    schema = {"type": "object", **properties, "required": ["a"]}
    body = {"model": "default", "prompt": "x", "format": schema, "stream": False}
    answer = real("POST", "/api/generate", json=body).json()
    assert json.loads(answer["response"]) == {"a": 7}


def test_nothing_to_answer_only_looks_whether_the_model_is_there(chat, generate, state):
    assert chat(messages=[]).json()["done_reason"] == "load"
    assert generate("").json()["done_reason"] == "load"
    refusal_of(generate("", model="llama3"), 404)
    assert not state.model.engine.seen


def test_thoughts_stand_apart_and_can_be_turned_off(thinker):
    call, template = thinker(switch="enable_thinking", has_effort=True)
    body = {"model": "default", "messages": [{"role": "user", "content": "x"}]}
    lines = lines_of(call("POST", "/api/chat", json={**body, "think": "high"}))
    assert template.variables == {"enable_thinking": True, "reasoning_effort": "high"}
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hm."
    assert "".join(line["message"]["content"] for line in lines) == "Paris"
    whole = call("POST", "/api/chat", json={**body, "think": False, "stream": False}).json()
    assert template.variables == {"enable_thinking": False}
    assert whole["message"]["content"] == "Paris"


def test_names_may_have_the_tag_that_clients_add(chat):
    whole = chat(model="scripted:latest", stream=False).json()
    assert (whole["model"], whole["message"]["content"]) == ("scripted:latest", "Hello")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": None}, "model"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "42"}]}, "no call before it"),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]}, "calls"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"stop": ["x"] * 17}}, "options.stop"),
        ({"format": "yaml"}, "'json' or a JSON schema"),
        ({"format": 7}, "format"),
        ({"think": "much"}, "think"),
        ({"tools": TOOLS * 2}, "two tools"),
        ({"top_logprobs": 1000}, "top_logprobs"),
    ],
)
def test_refusals_are_one_sentence(chat, fields, told):
    assert told in refusal_of(chat(**fields), 400)


def test_a_prompt_that_is_too_long_is_refused_before_the_stream(chat, generate):
    refusal_of(chat("a" * 600), 400)
    refusal_of(generate("a" * 600, raw=True), 400)
    refusal_of(generate("a" * 400_000, raw=True), 400)


def test_a_gap_needs_a_model_that_fills_some(generate):
    assert "suffix" in refusal_of(generate("a", suffix="b"), 400)


def test_a_failure_in_a_stream_is_its_last_line(chat):
    last = chat("break:3").text.splitlines()[-1]
    assert list(json.loads(last)) == ["error"]


def test_a_server_that_is_full_or_loading_says_so(chat, state, runner, caller_class):
    loading = caller_class(AppState(ledger=Ledger()), runner)
    refusal_of(loading("POST", "/api/chat", json={}), 503)
    refusal_of(loading("GET", "/api/tags"), 503)
    state.admit(state.max_admitted)
    refusal_of(chat(), 429)


def test_the_playgrounds_conversations_keep_their_errors(call):
    assert call("GET", "/api/chat/nothing").json()["error"]["code"] == "unknown_url"
