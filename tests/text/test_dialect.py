"""Which forms a model writes: told by its template, its control tokens, or an option."""

from __future__ import annotations

import pytest

from zse.server_options import REASONING_PARSERS, TOOL_PARSERS
from zse.text.dialect import Dialect, detect_dialect
from zse.text.facts import AddedToken
from zse.text.pieces import Said
from zse.text.reasoning.formats import FORMATS
from zse.text.tools import call_format

QWEN = "{{ '<tool_call>\\n{\"name\": ' }}{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"
MISTRAL = ("[INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")


def specials(*texts):
    return [AddedToken(token_id=10 + i, text=text, special=True) for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        (QWEN, "hermes", "think"),
        ("<tool_call>\n<function=f>\n<parameter=a>", "qwen3_coder", "none"),
        ("<tool_call>{{ name }}\n<arg_key></think>", "glm", "think"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS] [", "mistral", "none"),
        ("[SYSTEM_PROMPT] [THINK] [TOOL_CALLS] [ARGS]", "mistral", "mistral"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> <think>\n {{ '</think>' in x }}", "deepseek", "think"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "harmony", "none"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi", "none"),
        ("available_tools <|tool_call|> Here is my thought process:", "granite", "granite"),
        ("<TOOLCALL>[{{ calls }}]</TOOLCALL> <think></think>", "nemotron", "think"),
        ("[func_name1(params_name1=params_value1)]", "pythonic", "none"),
        ("<|tool_call_start|>[", "pythonic", "none"),
        ('Environment: ipython {"name": function name, "parameters": {}}', "llama3", "none"),
        ("<seed:think> <seed:tool_call>", "llama3", "seed"),
        ("Write your thoughts after 'Here is my thought process:'", "llama3", "granite"),
        ("", "llama3", "none"),
    ],
)  # fmt: skip
def test_a_template_tells_the_forms(template, calls, reasoning):
    found = detect_dialect(template, ())
    assert (found.calls, found.reasoning) == (calls, reasoning)


def test_control_tokens_tell_where_the_template_does_not():
    assert detect_dialect("{{ messages }}", specials("[TOOL_CALLS]")).calls == "mistral"
    assert detect_dialect("<tool_call>", specials("<|python_tag|>")).calls == "hermes"


def test_an_option_overrules_both():
    found = detect_dialect(QWEN, (), calls="pythonic", reasoning="none")
    assert (found.calls, found.reasoning) == ("pythonic", "none")
    assert detect_dialect(QWEN, (), calls="none").shape("", has_tools=True).calls is None


def test_every_option_is_a_form_and_every_form_an_option():
    for name in set(TOOL_PARSERS) - {"auto", "none"}:
        assert call_format(name).name == name
    assert set(REASONING_PARSERS) - {"auto", "none"} == set(FORMATS)
    assert all(each.name == name for name, each in FORMATS.items())


def test_an_answer_that_can_only_be_text_is_not_read():
    assert Dialect().shape("prompt", has_tools=False).reading({}) is None
    thinks = Dialect(reasoning="think")
    assert thinks.shape("assistant\n<think>\n\n</think>\n\n", has_tools=False).reading({}) is None
    assert thinks.shape("assistant\n<think>\n", has_tools=False).is_open
    assert not thinks.shape("assistant\n", has_tools=False).is_open


def test_the_reader_is_shown_the_control_tokens_of_its_forms_and_of_no_others():
    dialect = detect_dialect("[TOOL_CALLS] [THINK]", specials(*MISTRAL))
    reading = dialect.shape("", has_tools=True).reading({"f": {}})
    assert {MISTRAL[i - 10] for i in reading.shown_ids} == set(MISTRAL) - {"[INST]"}
    reading = dialect.shape("", has_tools=False).reading({})
    assert {MISTRAL[i - 10] for i in reading.shown_ids} == {"[THINK]", "[/THINK]"}


def test_text_without_tools_is_not_searched_for_calls():
    reading = Dialect(reasoning="think").shape("", has_tools=False).reading({})
    reader = reading.make_reader()
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert reader.push(text) + reader.finish() == [Said(text)]
