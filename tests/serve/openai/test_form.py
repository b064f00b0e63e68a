"""The form that a request asks for: every way to ask, and what is refused."""

from __future__ import annotations

import json

import pytest

from zse.engine.output import Delta
from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.openai.form import form_of
from zse.serve.openai.protocol import FORM_FIELDS, ChatRequest, CompletionRequest, read_request
from zse.text.grammar.spec import GrammarError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def form(**fields):
    body, ignored = read_request({"messages": [], **fields}, ChatRequest)
    assert not ignored
    return form_of(body)


def schema_of(spec):
    schema = json.loads(spec.source)
    return schema, schema.pop("x-guidance")


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": json.dumps(SCHEMA)},
    ],
)
def test_a_schema_is_asked_for_in_every_clients_way(fields):
    spec = form(**fields)
    assert spec.kind == "json_schema"
    assert schema_of(spec)[0] == SCHEMA
    assert spec.param == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"guided_regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "regex", "[0-9]+"),
        ({"guided_choice": ["yes", "no"]}, "lark", 'start: "yes" | "no"'),
        ({"structured_outputs": {"choice": ["a\n", "ü"]}}, "lark", 'start: "a\\n" | "ü"'),
        ({"guided_grammar": 'start: "x"+'}, "lark", 'start: "x"+'),
    ],
)
def test_texts_are_asked_for_by_expression_choice_and_grammar(fields, kind, source):
    spec = form(**fields)
    assert (spec.kind, spec.source) == (kind, source)


@pytest.mark.parametrize("name", ["grammar", "ebnf", "guided_grammar"])
def test_a_grammar_of_llama_cpp_is_read(name):
    spec = form(**{name: 'root ::= "yes" | "no"'})
    assert spec.kind == "lark"
    assert "start:" in spec.source
    assert "::=" not in spec.source


def test_no_form_is_any_text():
    assert form() is None
    assert form(response_format={"type": "text"}) is None
    assert form(guided_json_object=False) is None


def test_any_object_may_be_asked_for():
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
        {"structured_outputs": {"json_object": True}},
        {"guided_json_object": True},
    ):
        assert schema_of(form(**fields))[0] == {"type": "object"}


def test_strict_refuses_what_cannot_be_kept_and_otherwise_it_is_let_be():
    def asked(strict):
        described = {"name": "a", "schema": SCHEMA, "strict": strict}
        return form(response_format={"type": "json_schema", "json_schema": described})

    assert schema_of(asked(True))[1]["lenient"] is False
    assert schema_of(asked(None))[1]["lenient"] is True


def test_white_space_is_as_asked_for():
    compact = form(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    assert schema_of(compact)[1]["whitespace_flexible"] is False
    assert schema_of(compact)[1]["key_separator"] == ": "
    spaced = form(guided_json=SCHEMA, guided_whitespace_pattern=" ?")
    assert schema_of(spaced)[1]["whitespace_pattern"] == " ?"


def test_a_schema_cannot_set_options_of_the_library():
    spec = form(guided_json={**SCHEMA, "x-guidance": {"lenient": True}})
    assert schema_of(spec)[1]["lenient"] is False


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"response_format": {"type": "poem"}}, BadRequestError),
        ({"response_format": {"type": "json_schema"}}, MissingParameterError),
        ({"response_format": {"type": "json_object", "colour": 1}}, BadRequestError),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, BadRequestError),
        ({"structured_outputs": {}}, GrammarError),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, GrammarError),
        ({"structured_outputs": {"structural_tag": "x"}}, BadRequestError),
        ({"guided_json": "{"}, GrammarError),
        ({"guided_json": "[1]"}, GrammarError),
        ({"guided_regex": ""}, GrammarError),
        ({"guided_choice": []}, GrammarError),
        ({"guided_choice": [""]}, GrammarError),
        ({"grammar": "root ::= ("}, GrammarError),
        ({"guided_regex": "a" * 300_000}, GrammarError),
        ({"guided_choice": ["a"] * 10_001}, GrammarError),
    ],
)
def test_what_is_no_form_is_refused_by_the_name_of_its_field(fields, error):
    with pytest.raises(error) as refusal:
        form(**fields)
    assert refusal.value.param.startswith(next(iter(fields)))
    assert refusal.value.http_status == 400


def test_two_forms_are_refused():
    with pytest.raises(BadRequestError, match="'guided_json' and 'regex' both") as refusal:
        form(guided_json={}, regex="a")
    assert refusal.value.param == "regex"


def test_a_schema_is_bounded_in_depth_and_number():
    deep = {"type": "string"}
    for _ in range(40):
        deep = {"items": {"items": deep}}
    with pytest.raises(GrammarError, match="too large"):
        form(guided_json=deep)
    with pytest.raises(GrammarError, match="too large"):
        form(guided_json={"enum": list(range(30_000))})


def test_every_field_is_one_of_both_bodies():
    for kind in (ChatRequest, CompletionRequest):
        assert set(FORM_FIELDS) <= set(kind.__struct_fields__)


def test_an_answer_that_cannot_keep_its_form_is_the_callers_fault_in_words(
    call, state, monkeypatch, check_error
):
    async def aborted(prompt, params, index):
        yield Delta(index, "", finish_reason="abort")

    monkeypatch.setattr(state.require_model().engine, "_choice", aborted)
    message = check_error(call.chat(guided_regex="a+"), 400)
    assert "could not be held to its form" in message


def test_the_form_goes_with_the_request_to_the_engine(call, state):
    assert call.chat(response_format={"type": "json_object"}).status_code == 200
    assert call.complete(guided_regex="a+").status_code == 200
    assert [spec.kind for spec in state.require_model().engine.forms] == ["json_schema", "regex"]
