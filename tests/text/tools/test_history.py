"""Earlier calls are handed to a template as it reads them."""

import pytest

from zse.text.dialect import detect_dialect
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


HARMONY = (
    "{% set last = namespace(name=none) %}{% for message in messages %}"
    "{% if message.role == 'assistant' %}{% if 'tool_calls' in message %}"
    "{% set tool_call = message.tool_calls[0].function %}"
    "{% if message.content and message.thinking %}{{ raise_exception('both') }}"
    "{% elif message.content %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.content + '<|end|>' }}"
    "{% elif message.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}"
    "{% endif %}{{ '<|start|>assistant to=functions.' + tool_call.name + '<|channel|>commentary json<|message|>' }}"
    "{{ tool_call.arguments|tojson }}{{ '<|call|>' }}{% set last.name = tool_call.name %}"
    "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}{% endif %}"
    "{% elif message.role == 'tool' %}{{ '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{ message.content|tojson }}{{ '<|end|>' }}"
    "{% else %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}{% endif %}{% endfor %}"
)  # what the template of gpt-oss makes of calls


def rendered_by_harmony(messages):
    dialect = detect_dialect(HARMONY, ())
    read = [dialect.thinking.history(each) for each in dialect.call_history.messages(messages)]
    return ChatTemplate(HARMONY).render(read)


def call_of(name, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}


def result_of(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_calls_of_one_message_are_printed_one_by_one_each_with_its_result():
    calls = [call_of("f", "1"), call_of("g", "2")]
    messages = [
        {"role": "assistant", "content": "", "reasoning_content": "Both.", "tool_calls": calls},
        result_of("2", "of g"),
        result_of("1", "of f"),
        {"role": "user", "content": "And?"},
    ]
    thought, *rest = rendered_by_harmony(messages).split("<|start|>")[1:]
    assert thought == "assistant<|channel|>analysis<|message|>Both.<|end|>"
    assert rest == [
        "assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        'functions.f to=assistant<|channel|>commentary<|message|>"of f"<|end|>',
        "assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
        'functions.g to=assistant<|channel|>commentary<|message|>"of g"<|end|>',
        "user<|message|>And?<|end|>",
    ]


def test_a_result_that_answers_no_call_is_kept_behind_the_others():
    calls = [call_of("f", "1"), call_of("g", "2")]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        result_of("9", "of none"),
    ]
    assert rendered_by_harmony(messages).endswith('functions.g to=assistant<|channel|>commentary<|message|>"of none"<|end|>')  # fmt: skip


def test_what_was_said_before_a_call_joins_the_reasoning_where_only_one_may_stand():
    message = {
        "role": "assistant",
        "content": "One moment.",
        "reasoning_content": "I look.",
        "tool_calls": [call_of("f", "1")],
    }
    text = rendered_by_harmony([message])
    assert text.startswith("<|start|>assistant<|channel|>analysis<|message|>I look.\n\nOne moment.<|end|>")  # fmt: skip


def test_templates_that_print_every_call_get_them_all():
    for template in (QWEN, DEEPSEEK):
        assert not call_history_of(template).has_single_calls
        assert not call_history_of(template).has_one_text
