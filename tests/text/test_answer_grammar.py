"""Forced calls: what a form allows is read back as calls of offered tools with fitting arguments."""

from __future__ import annotations

import json

import jsonschema
import pytest
from grammar_walks import WordTokenizer, compiler_for, walk

from zse.errors import InvalidParameterError
from zse.text.answer_grammar import CallDemand, answer_grammar
from zse.text.dialect import Dialect
from zse.text.grammar.spec import GrammarError, regex
from zse.text.pieces import Arguments, CallOpening, Said
from zse.text.tools.grammar import CallTool

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    CallTool(name="get_weather", parameters=WEATHER, is_strict=True),
    CallTool(name="get_time", parameters=NOTHING, is_strict=True),
]
CONTROLS = {
    "hermes": (),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "deepseek": (
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    ),
    "qwen3_coder": (),
    "kimi": (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    ),
    "granite": ("<|tool_call|>",),
    "nemotron": (),
    "glm": ("<tool_call>", "</tool_call>"),
    "pythonic": (),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
}  # fmt: skip
FORMS = sorted(CONTROLS)


def spec_of(form, tools, controls, *, parallel=False, may_talk=False):
    shape = Dialect(calls=form, controls=controls).shape("", has_tools=True)
    demand = CallDemand(tools=tools, is_forced=not may_talk, is_single=not parallel)
    return answer_grammar(shape, None, demand)


def answers(form, tools, seeds, controls=None, **options):
    """Yield answers at random, each with what a client reads of it: its calls and its text."""
    tokenizer = WordTokenizer(CONTROLS[form] if controls is None else controls)
    grammar = compiler_for(tokenizer).compile(spec_of(form, tools, tokenizer.controls, **options))
    shape = Dialect(calls=form, controls=tokenizer.controls).shape("", has_tools=True)
    reading = shape.reading({tool.name: tool.parameters for tool in tools})
    for seed in seeds:
        ids, is_whole = walk(grammar.begin(), tokenizer, seed=seed)
        text = tokenizer.text_of(ids)
        reader = reading.make_reader()
        pieces = reader.push(text) + reader.finish()
        calls = []
        for piece in pieces:
            if isinstance(piece, CallOpening):
                calls.append([piece.name, ""])
            elif isinstance(piece, Arguments):
                calls[-1][1] += piece.text
        said = "".join(piece.text for piece in pieces if isinstance(piece, Said))
        yield text, calls, said, is_whole


def check(calls, tools=TOOLS):
    schemas = {tool.name: tool.parameters for tool in tools}
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[name])


@pytest.mark.parametrize("form", FORMS)
def test_a_forced_call_is_one_call_whose_arguments_fit(form):
    for text, calls, said, is_whole in answers(form, TOOLS, range(12)):
        assert is_whole, text
        assert len(calls) == 1, text
        check(calls)
        assert not said.strip(), text


@pytest.mark.parametrize("form", FORMS)
def test_a_named_tool_is_the_one_that_is_called(form):
    for text, calls, _, _ in answers(form, TOOLS[1:], range(3)):
        assert [name for name, _ in calls] == ["get_time"], text
        check(calls)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "harmony"])
def test_several_calls_may_stand_in_one_answer(form):  # a turn of harmony ends with a call
    counts = set()
    for text, calls, said, is_whole in answers(form, TOOLS, range(14), parallel=True):
        if is_whole:
            counts.add(len(calls))
            check(calls)
            assert not said.strip(), text
    assert 1 in counts
    assert max(counts) > 1


@pytest.mark.parametrize("form", [form for form in FORMS if form != "harmony"])
def test_who_may_talk_may_also_not_call_and_what_is_called_fits(form):
    seen = set()
    for _, calls, _, is_whole in answers(form, TOOLS, range(25), parallel=True, may_talk=True):
        if is_whole:
            check(calls)
            seen.add(bool(calls))
    assert False in seen


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (r"a/b", {"a/b"}),
        (r"a\/b", {"a/b"}),
        (r"a\\/b", {"a\\/b"}),
        ("a\n|b\\n|[/]", {"a\n", "b\n", "/"}),
    ],
)
def test_an_expression_beside_tools_may_hold_slashes_escaped_or_not(pattern, wanted):
    tokenizer = WordTokenizer()
    shape = Dialect(calls="hermes", controls=tokenizer.controls).shape("", has_tools=True)
    spec = answer_grammar(shape, regex(pattern), CallDemand(tools=TOOLS[1:]))
    grammar, found = compiler_for(tokenizer).compile(spec), set()
    for seed in range(12):
        ids, is_whole = walk(grammar.begin(), tokenizer, seed=seed)
        text = tokenizer.text_of(ids)
        if is_whole and "get_time" not in text:
            found.add(text.removesuffix("<|end_of_answer|>"))
    assert found
    assert found <= wanted


def test_older_mistral_models_write_a_list():
    for text, calls, said, is_whole in answers(
        "mistral", TOOLS, range(6), controls=("[TOOL_CALLS]",), parallel=True
    ):
        assert text.startswith(("[TOOL_CALLS][{", "[TOOL_CALLS] [{"))
        if is_whole:
            check(calls)
            assert not said.strip()


def test_text_cannot_stand_for_a_control_token():
    tokenizer = WordTokenizer(CONTROLS["mistral"])
    spec = spec_of("mistral", TOOLS, tokenizer.controls)
    state = compiler_for(tokenizer).compile(spec).begin()
    state.advance(tokenizer.encode("[")[0])
    assert state.error


def test_a_model_without_a_form_cannot_be_made_to_call():
    shape = Dialect(calls="none").shape("", has_tools=True)
    with pytest.raises(InvalidParameterError, match="use 'auto'"):
        answer_grammar(shape, None, CallDemand(tools=TOOLS, is_forced=True))
    assert answer_grammar(shape, None, CallDemand(tools=TOOLS)) is None


def test_a_strict_tool_refuses_what_cannot_be_kept_and_another_lets_it_be():
    tokenizer = WordTokenizer()
    schema = {"type": "object", "properties": {}, "not": {"required": ["a"]}}
    for is_strict in (False, True):
        tool = CallTool(name="f", parameters=schema, is_strict=is_strict)
        spec = spec_of("hermes", [tool], tokenizer.controls)
        compiler = compiler_for(tokenizer)
        if is_strict:
            with pytest.raises(GrammarError):
                compiler.compile(spec)
        else:
            assert compiler.compile(spec)
