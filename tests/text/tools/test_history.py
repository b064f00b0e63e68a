"""Earlier calls are handed to a template as it reads them."""

import pytest

from zse.text.template import ChatTemplate
from zse.text.tools.history import CallHistory, call_history_of

DEEPSEEK = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}"
    "{% for tool in m['tool_calls'] %}{{ tool['type'] + '<sep>' + tool['function']['name'] + "
    "'\\n```json\\n' + tool['function']['arguments'] + '\\n```' }}{% endfor %}"
    "{% elif m['content'] is not none %}{{ m['content'] }}{% endif %}{% endfor %}"
)
QWEN = (
    "{% for m in messages %}{{ m.content + '!' }}{% for call in m.tool_calls %}"
    "{{ call.function.name + ' ' }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


def calling(content="", arguments=None):
    function = {"name": "f", "arguments": {"a": "ü"} if arguments is None else arguments}
    call = {"id": "1", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("template", "history", "text"),
    [
        (DEEPSEEK, CallHistory(has_text_arguments=True, has_null_content=True), 'function<sep>f\n```json\n{"a": "ü"}\n```'),
        (QWEN, CallHistory(), '!f {"a": "ü"}'),
    ],
)  # fmt: skip
def test_a_template_gets_calls_in_the_shape_that_it_reads(template, history, text):
    found = call_history_of(template)
    assert found == history
    assert ChatTemplate(template).render([found.message(calling())]) == text


def test_ids_of_other_servers_are_made_to_fit_and_stay_pairs():
    source = "{% if tool_call.id is not defined or tool_call.id|length != 9 %}"
    history = call_history_of(source)
    assert history == CallHistory(has_short_ids=True)
    (call,) = history.message(calling())["tool_calls"]
    result = history.message({"role": "tool", "tool_call_id": "1", "content": "a"})
    assert call["id"] == result["tool_call_id"]
    assert (len(call["id"]), call["id"].isalnum()) == (9, True)
    ours = {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "a"}
    assert history.message(ours)["tool_call_id"] == "a1b2c3d4e"


@pytest.mark.parametrize(
    "template",
    [
        "{{ '{\"name\": \"' + call.name + '\", \"arguments\": ' + (call.arguments | tojson) + '}' }}",
        "{{ '\"arguments\": ' + call.arguments|tojson }}",
        "{% for k, v in call.arguments.items() %}{{ '<' + k + '>' + v }}{% endfor %}",
        "{% set _args = tc.arguments %}{{ 'a' + 'b' }}",
        "{{ tool_call.function | tojson }}",
        "",
    ],
)
def test_arguments_that_are_printed_as_json_stay_values(template):
    assert not call_history_of(template).has_text_arguments


def test_only_what_calls_is_changed():
    history = CallHistory(has_text_arguments=True, has_null_content=True)
    plain = {"role": "assistant", "content": ""}
    assert history.message(plain) is plain
    assert history.message(calling("Hm."))["content"] == "Hm."
    cut = history.message(calling(arguments='{"a'))
    assert cut["tool_calls"][0]["function"]["arguments"] == '{"a'
