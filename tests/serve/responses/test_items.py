"""Items become the messages that templates know, and what nobody reads is refused by its place."""

import pytest

from zse.serve.http.errors import BadRequestError, UnknownIdError
from zse.serve.responses.items import add_items, input_items
from zse.serve.transcript import Transcript

CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}


def unknown(item_id):
    raise UnknownIdError("item", item_id)


def messages(*items):
    transcript = Transcript()
    add_items(transcript, input_items(list(items), unknown))
    return transcript.messages()


def test_a_text_is_one_message_of_the_user():
    (item,) = input_items("hi", unknown)
    assert item["id"].startswith("msg_")
    assert messages(item) == [{"role": "user", "content": "hi"}]


def test_messages_need_no_type_and_developers_are_the_system():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages({"role": "developer", "content": "be"}, {"role": "user", "content": parts}) == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a\nb"},
    ]


def test_an_assistants_items_are_one_turn():
    said = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look", "annotations": [], "logprobs": []}],
    }
    second = {**CALL, "call_id": "c2"}
    found = messages({"role": "user", "content": "?"}, THOUGHT, said, CALL, second, RESULT)
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]
    assert found[1]["content"] == "I look"
    assert found[1]["reasoning_content"] == "hm"
    calls = found[1]["tool_calls"]
    assert [call["id"] for call in calls] == ["c1", "c2"]
    assert calls[0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert found[2] == {"role": "tool", "tool_call_id": "c1", "content": "sun"}


def test_a_summary_stands_for_a_thought_and_a_sealed_one_says_nothing():
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert messages(summary)[0]["reasoning_content"] == "hm"
    assert messages({"type": "reasoning", "summary": [], "encrypted_content": "x"}) == []


def test_an_item_that_is_referred_to_is_found():
    kept = {"id": "msg_7", "type": "message", "role": "assistant", "content": "yes"}
    given = [{"type": "item_reference", "id": "msg_7"}, {"id": "msg_7"}]
    items = input_items(given, {"msg_7": kept}.__getitem__)
    assert items == [kept, kept]
    with pytest.raises(UnknownIdError) as missing:
        input_items(given, unknown)
    assert missing.value.param == "input[0].id"


@pytest.mark.parametrize(
    ("item", "param", "words"),
    [
        ({"type": "web_search_call", "id": "w"}, "input[1].type", "web_search_call"),
        ({"type": ["x"]}, "input[1].type", "is of type"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0]", "images"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[1].content[0]", "files"),
        ({"role": "user", "content": [{"type": "x"}]}, "input[1].content[0]", "only text"),
        ({"role": "critic", "content": "x"}, "input[1].role", "critic"),
        ({**RESULT, "output": [{"type": "input_image"}]}, "input[1].output[0]", "images"),
        ({"type": "function_call", "call_id": "c"}, "input[1].name", "name"),
        ({**CALL, "arguments": {}}, "input[1].arguments", "Expected `str`"),
    ],
)
def test_what_nobody_reads_is_refused_by_its_place(item, param, words):
    with pytest.raises(BadRequestError, match=words) as refused:
        messages({"role": "user", "content": "a"}, item)
    assert refused.value.param == param


def test_unknown_fields_of_items_are_reported():
    part = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    items = input_items([{"role": "user", "content": [part, part], "more": 1}], unknown)
    assert add_items(Transcript(), items) == [
        "input[].content[].prompt_cache_breakpoint",
        "input[].more",
    ]
