"""What Ollama's messages become before a template sees them."""

import pytest

from zse.serve.http.errors import BadRequestError
from zse.serve.ollama.conversation import chat_of
from zse.serve.ollama.protocol import OllamaChatRequest, read_ollama


def messages_of(*messages):
    given = {"model": "m", "messages": [{"role": "user", "content": "?"}, *messages]}
    return chat_of(read_ollama(given, OllamaChatRequest)[0]).messages[1:]


def calling(*calls):
    made = [
        {"function": {"name": name, "arguments": {"n": n}}, **({"id": own} if own else {})}
        for n, (name, own) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": made}


def result(text, **fields):
    return {"role": "tool", "content": text, **fields}


def test_results_without_ids_belong_to_the_calls_in_their_order():
    asked, first, second = messages_of(calling(("f", ""), ("f", "")), result("1"), result("2"))
    ids = [call["id"] for call in asked["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)  # as Mistral's templates want it
    assert [first["tool_call_id"], second["tool_call_id"]] == ids
    assert asked["reasoning_content"] == "hm"
    assert asked["tool_calls"][1]["function"] == {"name": "f", "arguments": {"n": 1}}


def test_results_may_name_their_tool_or_their_call():
    calls = calling(("f", ""), ("g", "mine"))
    asked, second, first = messages_of(calls, result("G", tool_name="g"), result("F"))
    assert second["tool_call_id"] == "mine"
    assert first["tool_call_id"] == asked["tool_calls"][0]["id"]
    _, only = messages_of(calls, result("G", tool_call_id="mine"))
    assert only["tool_call_id"] == "mine"


@pytest.mark.parametrize("fields", [{"tool_name": "x"}, {"tool_call_id": "x"}])
def test_a_result_of_no_call_is_refused(fields):
    with pytest.raises(BadRequestError, match=r"messages\[2\]"):
        messages_of(calling(("f", "")), result("1", **fields))
