"""The OpenAI client asks the built-in model for answers in a form, hot enough to write nonsense."""

from __future__ import annotations

import json
import random
import re
import threading

import httpx
import jsonschema
import openai
import pytest
from grammar_bombs import BOMBS, EXPRESSIONS, GRAMMARS
from random_schemas import random_schema

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}


@pytest.fixture
def ask(tiny):
    """Ask for one answer, and return its choice."""
    with tiny.openai() as client:

        def ask(**fields):
            options = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "Tell me about somebody."}],
                "temperature": 1.5,
                "max_tokens": 400,
                **fields,
            }
            return client.chat.completions.create(**options)

        yield ask


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.parametrize("num_schemas", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_answers_to_random_schemas_are_valid(ask, num_schemas):
    draw = random.Random(7)
    reasons = []
    for seed in range(num_schemas):
        schema = random_schema(draw)
        choice = ask(response_format=schema_format(schema, strict=True), seed=seed).choices[0]
        reasons.append(choice.finish_reason)
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), schema)
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") >= 0.97 * num_schemas


def test_whole_and_streamed_answers_are_the_same_object(ask):
    fields = {"response_format": schema_format(PERSON), "seed": 3}
    whole = ask(**fields).choices[0].message.content
    chunks = [chunk for chunk in ask(stream=True, **fields) if chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(whole), PERSON)


def test_the_client_parses_what_pydantic_describes(tiny):
    import pydantic

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=150)

    with tiny.openai() as client:
        answer = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "Who?"}],
            response_format=Person,
            temperature=1.5,
            seed=1,
        )
    assert isinstance(answer.choices[0].message.parsed, Person)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[0-9]{3}-[a-z]{2,5}"}, "[0-9]{3}-[a-z]{2,5}"),
        ({"structured_outputs": {"choice": ["yes", "no", "maybe"]}}, "yes|no|maybe"),
        ({"guided_choice": ["Grüße", 'say "hi"\n']}, 'Grüße|say "hi"\n'),
        ({"grammar": 'root ::= "a"{2,4} ("b" | "c")'}, "a{2,4}[bc]"),
        ({"guided_grammar": 'start: "x" NUMBER\nNUMBER: /[1-9][0-9]{0,3}/'}, "x[1-9][0-9]{0,3}"),
    ],
)
def test_texts_match_their_expressions(ask, fields, pattern):
    for seed in range(5):
        choice = ask(seed=seed, extra_body=fields).choices[0]
        assert choice.finish_reason == "stop"
        assert re.fullmatch(pattern, choice.message.content)


def test_any_object_is_an_object(ask):
    choices = [
        ask(response_format={"type": "json_object"}, seed=seed, n=4).choices for seed in range(2)
    ]
    whole = [one for each in choices for one in each if one.finish_reason == "stop"]
    assert whole
    assert all(isinstance(json.loads(one.message.content), dict) for one in whole)


def test_a_form_goes_together_with_everything_else(ask):
    answer = ask(
        response_format=schema_format(PERSON),
        n=3,
        seed=5,
        logprobs=True,
        top_logprobs=2,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        logit_bias={"100": 5},
        extra_body={"min_tokens": 200, "ignore_eos": True, "top_k": 20, "repetition_penalty": 1.1},
    )
    assert len({choice.message.content for choice in answer.choices}) == 3
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        told = "".join(entry.token for entry in choice.logprobs.content)
        assert told == choice.message.content


def test_a_stop_text_ends_a_form_and_a_limit_cuts_it(ask):
    stopped = ask(response_format=schema_format(PERSON), stop=['"age"'], seed=2).choices[0]
    assert stopped.finish_reason == "stop"
    assert '"age"' not in stopped.message.content
    cut = ask(response_format=schema_format(PERSON), max_tokens=5, seed=2).choices[0]
    assert cut.finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": schema_format({"type": "zebra"})}, "response_format", "zebra"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex", "unclosed group"),
        ({"extra_body": {"guided_grammar": "start: missing"}}, "guided_grammar", "missing"),
        (
            {"extra_body": {"guided_json": {"$ref": "http://x.y/z"}}},
            "guided_json",
            "z",
        ),
        ({"extra_body": {"guided_choice": []}}, "guided_choice", "0 choices"),
    ],
)
def test_a_bad_form_is_a_400_in_the_librarys_words(ask, fields, param, words):
    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        ask(**fields)
    assert refusal.value.param == param
    assert refusal.value.type == "invalid_request_error"


def test_strict_refuses_what_cannot_be_kept(ask):
    schema = {"type": "object", "not": {"required": ["a"]}}
    with pytest.raises(openai.BadRequestError, match="not"):
        ask(response_format=schema_format(schema, strict=True))
    ask(response_format=schema_format(schema), max_tokens=5)


def test_the_server_answers_while_bombs_are_compiled(tiny):
    statuses: list[int] = []

    def send(body):
        answer = httpx.post(f"{tiny.url}/v1/completions", json=body, timeout=300)
        statuses.append(answer.status_code)

    bodies = [{"guided_json": value} for value in BOMBS.values()]
    bodies += [{"guided_regex": value} for value in EXPRESSIONS.values()]
    bodies += [{"guided_grammar": value} for value in GRAMMARS.values()]
    threads = [
        threading.Thread(target=send, args=({**body, "prompt": "Go", "max_tokens": 8},))
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    answered = 0
    while any(thread.is_alive() for thread in threads):
        answered += httpx.get(f"{tiny.url}/health/live", timeout=60).status_code == 200
    assert answered
    assert set(statuses) <= {200, 400, 413, 429}
    assert {200, 400} <= set(statuses)
    after = {"prompt": "Go", "guided_choice": ["yes"]}
    answer = httpx.post(f"{tiny.url}/v1/completions", json=after, timeout=60)
    assert answer.json()["choices"][0]["text"] == "yes"
