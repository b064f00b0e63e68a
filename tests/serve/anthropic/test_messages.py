"""Anthropic's routes in this process: shapes, refusals, and streams that say the same."""

import json

import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

from zse.serve.ledger import Ledger
from zse.serve.state import AppState

EVENT = TypeAdapter(RawMessageStreamEvent)
CALL = 'say:Well <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
CALLED = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
TOOLS = [{"name": "weather", "input_schema": {"type": "object"}}]


def events_of(response):
    """Return the events of a stream; each but pings is one that the client's types know."""
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            EVENT.validate_python(event)
        found.append(event)
    return found


def refusal_of(response, status, kind):
    assert response.status_code == status, response.text
    error = ErrorResponse.model_validate(response.json())
    assert error.error.type == kind
    assert error.request_id == response.headers["request-id"]
    return error.error.message


def test_an_answer_is_a_message_of_the_clients_types(ask):
    response = ask("say:Paris", stop_sequences=["x"])
    assert response.headers["request-id"].startswith("req_")
    message = Message.model_validate(response.json())
    assert message.id.startswith("msg_")
    assert message.model == "scripted"
    assert [block.text for block in message.content] == ["Paris"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == 5
    assert message.usage.cache_read_input_tokens == 0


def test_a_stream_has_the_events_in_their_order(ask):
    events = events_of(ask("say:Hi", stream=True))
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 2


@pytest.mark.parametrize("text", ["say:Hello", CALL, "say: \n "])
def test_a_stream_adds_up_to_the_whole(ask, text):
    whole = ask(text, tools=TOOLS).json()
    content = []
    for event in events_of(ask(text, tools=TOOLS, stream=True)):
        if event["type"] == "content_block_start":
            content.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            content[-1]["text"] = content[-1].get("text", "") + delta.get("text", "")
            content[-1]["json"] += delta.get("partial_json", "")
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"])
            block["id"] = whole["content"][block_index(content, block)]["id"]
            del block["text"]
        del block["json"]
    assert content == whole["content"]


def block_index(content, block):
    return next(index for index, each in enumerate(content) if each is block)


def test_a_call_is_a_block_and_the_reason(ask):
    body = ask(CALL, tools=TOOLS).json()
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["content"][1]["input"] == {"city": "Paris"}
    assert body["stop_reason"] == "tool_use"


def test_the_input_of_a_call_that_was_cut_is_empty_and_the_reason_says_why(ask):
    body = ask(CALL, tools=TOOLS, max_tokens=60).json()
    assert body["stop_reason"] == "max_tokens"
    assert not any(block.get("input") for block in body["content"])


def test_the_stop_sequence_that_ended_it_is_named(ask):
    fields = {"stop_sequences": ["zzz", "lo"]}
    body = ask("say:Hello", **fields).json()
    assert body["content"][0]["text"] == "Hel"
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "lo")
    delta = events_of(ask("say:Hello", stream=True, **fields))[-2]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "lo"}


def test_an_answer_that_is_cut_says_whether_by_its_limit_or_by_the_context(ask):
    assert ask("say:" + "a" * 50, max_tokens=9).json()["stop_reason"] == "max_tokens"
    long = ask("say:" + "a" * 400, max_tokens=30_000).json()
    assert long["stop_reason"] == "model_context_window_exceeded"
    assert long["usage"]["input_tokens"] + long["usage"]["output_tokens"] == 512


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_know(ask):
    message = refusal_of(ask("a" * 600), 400, "invalid_request_error")
    assert message.startswith("prompt is too long: ")
    assert refusal_of(ask("a" * 400_000), 400, "invalid_request_error").startswith(
        "prompt is too long: "
    )


def test_an_answer_goes_on_with_what_the_assistant_began(ask, state):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "say:Once"}]
    assert ask(messages=messages).json()["content"][0]["text"] == "Once"
    assert state.model.engine.seen[-1][0].endswith("assistant: say:Once")


def test_tokens_are_counted_as_they_are_used(call, ask):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "say:Hi"}]}
    response = call("POST", "/v1/messages/count_tokens", json={**body, "system": "be"})
    count = MessageTokensCount.model_validate(response.json())
    assert count.input_tokens == ask("say:Hi", system="be").json()["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "claude-x"}, 404, "not_found_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"temperature": 1.5}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, 400, None),
        ({"messages": [{"role": "assistant", "content": [CALLED]}]}, 400, None),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, None),
        ({"tool_choice": {"type": "any"}}, 400, None),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, 400, None),
        ({"mcp_servers": [{"url": "http://10.0.0.1"}]}, 400, None),
        ({"container": "c"}, 400, None),
        ({"tools": [{"name": "no name", "input_schema": {}}]}, 400, None),
        ({"tools": TOOLS * 2}, 400, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": 1}}}, 400, None),
        ({"stop_sequences": ["x"] * 17}, 400, None),
    ],
)
def test_refusals_have_anthropics_form(ask, fields, status, kind):
    refusal_of(ask(**fields), status, kind or "invalid_request_error")


def test_refusals_before_any_handler_have_it_too(call):
    message = refusal_of(call("GET", "/v1/messages"), 405, "invalid_request_error")
    assert "GET" in message
    unknown = call("POST", "/v1/messages/batches", json={})
    refusal_of(unknown, 404, "not_found_error")
    refusal_of(call("POST", "/v1/messages", content=b"{"), 400, "invalid_request_error")


def test_a_server_that_is_full_or_loading_says_so_in_anthropics_words(ask, state, loading):
    state.admit(state.max_admitted)
    refusal_of(ask(), 429, "rate_limit_error")
    refusal_of(ask(stream=True), 429, "rate_limit_error")


def test_a_server_that_loads_is_overloaded(runner, caller_class):
    call = caller_class(AppState(ledger=Ledger()), runner)
    refusal_of(call("POST", "/v1/messages", json={}), 503, "overloaded_error")


def test_a_failure_in_a_stream_is_an_error_event(ask):
    last = ask("break:3", stream=True).text.split("\n\n")[-2]
    name, data = last.split("\n")
    assert name == "event: error"
    assert ErrorResponse.model_validate_json(data[6:]).error.type == "api_error"


def test_fields_without_effect_are_reported(ask):
    response = ask(
        service_tier="auto",
        metadata={"user_id": "u"},
        cache_control={"type": "ephemeral"},
        thinking={"type": "enabled", "budget_tokens": 2048},
        context_management={"edits": []},
        output_config={"effort": "low"},
        system=[{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
    )
    assert response.status_code == 200
    names = set(response.headers["x-zse-ignored"].split(", "))
    assert names == {"context_management", "thinking.budget_tokens", "output_config.effort"}


def test_models_have_anthropics_form_for_its_clients_alone(call):
    headers = {"anthropic-version": "2023-06-01"}
    page = call("GET", "/v1/models", headers=headers).json()
    (entry,) = page["data"]
    ModelInfo.model_validate(entry)
    assert entry["created_at"] == "1970-01-01T00:00:01Z"
    assert page["has_more"] is False
    assert call("GET", "/v1/models/default", headers=headers).json() == entry
    assert call("GET", "/v1/models").json()["object"] == "list"


def think(call, **fields):
    body = {"model": "default", "max_tokens": 99, "messages": [{"role": "user", "content": "x"}]}
    return call("POST", "/v1/messages", json={**body, **fields})


def test_thoughts_are_blocks_where_they_are_asked_for(thinker):
    call, template = thinker(switch="enable_thinking", has_effort=True)
    asked = {
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "output_config": {"effort": "high"},
    }
    response = think(call, **asked)
    assert template.variables == {"enable_thinking": True, "reasoning_effort": "high"}
    assert response.headers["x-zse-ignored"] == "thinking.budget_tokens"
    message = Message.model_validate(response.json())
    thought, text = message.content
    assert (thought.type, thought.thinking, text.text) == ("thinking", "Hm.", "Paris")
    assert thought.signature
    deltas = [
        event["delta"]
        for event in events_of(think(call, stream=True, **asked))
        if event["type"] == "content_block_delta"
    ]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Hm."
    assert deltas[-len("Paris") - 1] == {"type": "signature_delta", "signature": thought.signature}


def test_thoughts_may_be_left_out_of_the_answer(thinker):
    call, template = thinker(switch="enable_thinking")
    body = think(call, thinking={"type": "adaptive", "display": "omitted"}).json()
    assert template.variables == {"enable_thinking": True}
    assert [block["type"] for block in body["content"]] == ["text"]


def test_thoughts_that_nobody_asked_for_are_not_shown(thinker):
    call, template = thinker(switch="enable_thinking")
    body = think(call).json()
    assert template.variables == {"enable_thinking": False}
    assert [block["type"] for block in body["content"]] == ["text"]
    types = [event["type"] for event in events_of(think(call, stream=True))]
    assert types.count("content_block_start") == 1


def test_a_message_can_be_resumed(call):
    body = {"model": "default", "max_tokens": 9, "stream": True}
    body["messages"] = [{"role": "user", "content": "say:Hi"}]
    response = call("POST", "/v1/messages", json=body, headers={"x-zse-resumable": "1"})
    path = f"/v1/streams/{response.headers['x-zse-stream-id']}"
    again = call("GET", path, headers={"last-event-id": "3"})
    assert again.text == response.text[response.text.index("id: 4\n") :]
