"""Bodies that are broken anywhere are refused in the form of their protocol, and never a failure."""

import copy
import random

import pytest

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
RESPONSE = {
    "model": "scripted",
    "input": [
        {"role": "user", "content": "say:a"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "c"}]},
        {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "d", "output": "say:e"},
    ],
    "instructions": "g",
    "tools": [FUNCTION],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]},
    "text": {"format": {"type": "json_schema", "name": "h", "schema": {}, "strict": True}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "metadata": {"i": "j"},
    "stream": True,
    "stream_options": {},
    "max_output_tokens": 5,
}
MESSAGE = {
    "model": "scripted",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "say:b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "c", "signature": "d"},
                {"type": "tool_use", "id": "e", "name": "f", "input": {"g": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "e",
                    "content": [{"type": "text", "text": "say:h"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low"},
    "stop_sequences": ["i"],
    "stream": True,
}
VALUES = [None, "", 0, -1, 1e308, True, [], {}, "x" * 50, [None], [[]], [1, "a"], "required"]
VALUES += [{"type": "function"}, {"type": []}, {"a": {"b": []}}, 2**53, "\u2028"]


def places_in(value, place=()):
    yield place
    items = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield from places_in(inner, (*place, key))


def broken(body, chance):
    """Return a body that lacks one to three of its values, or has others in their place."""
    body = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        places = [place for place in places_in(body) if place]
        *outer, last = chance.choice(places)
        holder = body
        for key in outer:
            holder = holder[key]
        if chance.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(chance.choice(VALUES))
    return body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", RESPONSE),
        ("/v1/responses/input_tokens", RESPONSE),
        ("/v1/messages", MESSAGE),
        ("/v1/messages/count_tokens", MESSAGE),
    ],
)
def test_broken_bodies_are_no_failures(call, path, body):
    assert call("POST", path, json=body).status_code == 200
    chance = random.Random(path)
    for _ in range(150):
        sent = broken(body, chance)
        response = call("POST", path, json=sent)
        assert response.status_code in (200, 400, 404), (sent, response.text)
        assert '"server_error"' not in response.text, sent
        assert '"api_error"' not in response.text, sent
        if response.status_code != 200:
            error = response.json()["error"]
            assert error["message"], sent
            assert (response.json().get("type") == "error") == path.startswith("/v1/messages")
