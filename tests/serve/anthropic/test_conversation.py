"""What Anthropic's messages become before a template sees them."""

import pytest

from zse.errors import InvalidParameterError
from zse.serve.anthropic.conversation import conversation_of
from zse.serve.anthropic.protocol import read_messages
from zse.serve.http.errors import BadRequestError

CALL = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}}


def conversation(*messages, **fields):
    given = {"model": "m", "max_tokens": 9, "messages": list(messages), **fields}
    return conversation_of(read_messages(given)[0])


def user(*content):
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def text(words):
    return {"type": "text", "text": words}


def test_the_system_is_a_text_or_blocks_and_comes_first():
    assert conversation(user("a"), system="be").messages[0] == {"role": "system", "content": "be"}
    blocks = [text("be"), {**text("good"), "cache_control": {"type": "ephemeral"}}]
    assert conversation(user("a"), system=blocks).messages[0]["content"] == "be\n\ngood"


def test_what_agents_write_into_the_system_for_billing_is_not_shown_to_the_model():
    blocks = [text("x-anthropic-billing-header: cc_version=2; cch=a1b2;"), text("be")]
    assert conversation(user("a"), system=blocks).messages[0]["content"] == "be"


def test_a_call_and_its_result_become_the_messages_that_templates_know():
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("sun"), text("22")]}
    found = conversation(
        user("weather?"),
        {"role": "assistant", "content": [text("I look"), CALL]},
        user(result, text("and tomorrow?")),
    )
    assert found.messages[1:] == [
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sun\n22"},
        {"role": "user", "content": "and tomorrow?"},
    ]


def test_a_failed_call_is_told_as_one():
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no net", "is_error": True}
    assert conversation(user(result)).messages == [
        {"role": "tool", "tool_call_id": "t1", "content": "Error: no net"}
    ]


def test_turns_of_the_same_role_in_a_row_are_one():
    found = conversation(
        user("a"),
        user(text("b"), text("c")),
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": [CALL]},
        user("e"),
    )
    assert [m["role"] for m in found.messages] == ["user", "assistant", "user"]
    assert found.messages[0]["content"] == "a\n\nb\n\nc"
    assert found.messages[1]["content"] == "d"
    assert len(found.messages[1]["tool_calls"]) == 1


def test_earlier_thoughts_are_given_to_the_template_and_sealed_ones_dropped():
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": "x"}]
    sealed = [{"type": "redacted_thinking", "data": "x"}]
    found = conversation(
        user("a"), {"role": "assistant", "content": [*thoughts, *sealed, text("b")]}, user("c")
    )
    assert found.messages[1] == {"role": "assistant", "content": "b", "reasoning_content": "hm"}


def test_a_message_of_nothing_is_one_without_text():
    assert conversation(user("a"), {"role": "assistant", "content": ""}, user("b")).messages == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "b"},
    ]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "image", "source": {"type": "url", "url": "http://10.0.0.1"}}, "images"),
        ({"type": "document", "source": {}}, "documents"),
        (CALL, "'tool_use' has no place in a message of the user"),
    ],
)
def test_blocks_that_nobody_reads_are_refused_by_name_and_place(block, words):
    with pytest.raises(BadRequestError, match=words) as refused:
        conversation(user("a"), user(text("b"), block))
    assert refused.value.param == "messages[1].content[1]"


def test_an_image_in_a_result_is_refused_by_its_place():
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}
    with pytest.raises(BadRequestError, match="images") as refused:
        conversation(user(result))
    assert refused.value.param == "messages[0].content[0].content[0]"


def test_tools_and_the_choice_among_them():
    tools = [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]
    found = conversation(
        user("a"),
        tools=tools,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    assert (found.tools[0].name, found.tools[0].parameters) == ("weather", {"type": "object"})
    assert (found.choice.mode, found.parallel_calls) == ("auto", False)
    none = conversation(user("a"), tools=tools, tool_choice={"type": "none"})
    assert none.choice.mode == "none"
    must = conversation(user("a"), tools=tools, tool_choice={"type": "any"})
    assert must.choice.mode == "required"
    named = conversation(user("a"), tools=tools, tool_choice={"type": "tool", "name": "weather"})
    assert (named.choice.mode, named.choice.name) == ("named", "weather")


def test_thinking_is_off_unless_it_is_asked_for():
    def asked(**fields):
        return conversation(user("a"), **fields).effort

    assert asked() == "none"
    assert asked(thinking={"type": "disabled"}) == "none"
    assert asked(thinking={"type": "enabled", "budget_tokens": 2048}) == "medium"
    assert asked(thinking={"type": "adaptive"}, output_config={"effort": "max"}) == "xhigh"


def test_the_form_of_the_answer_is_a_grammar_that_errors_can_name():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"format": {"type": "json_schema", "schema": schema}}
    form = conversation(user("a"), output_config=asked).form
    assert (form.kind, form.param) == ("json_schema", "output_config.format.schema")
    assert conversation(user("a"), output_config={"effort": "low"}).form is None
    deep = {}
    for _ in range(100):
        deep = {"items": deep}
    asked = {"format": {"type": "json_schema", "schema": deep}}
    with pytest.raises(InvalidParameterError) as refused:
        conversation(user("a"), output_config=asked)
    assert refused.value.param == "output_config.format.schema"
