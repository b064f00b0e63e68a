"""Trained models behind the real server on the CPU, asked with the openai client."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from openai import OpenAI
from real_model import CHAT_PROMPTS, SCHEMES, RealModel
from real_texts import TOOLS
from started_server import StartedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "year": {"type": "integer"},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["name", "year", "languages"],
    "additionalProperties": False,
}
WEATHER = "What is the weather in Paris, in celsius?"


@contextmanager
def serving(file: Path) -> Iterator[OpenAI]:
    command = [sys.executable, "-m", "zse.serve", str(file), "--device", "cpu", "--port", "0"]
    server = StartedServer([*command, "--max-context", "2048"], {})
    try:
        yield OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=600)
    finally:
        assert server.stop() == 0


def ask(client: OpenAI, text: str, **options: Any) -> Any:
    """Return the only choice of a greedy answer."""
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": text}],
        temperature=0,
        **({"max_tokens": 100} | options),
    )
    return answer.choices[0]


@pytest.mark.parametrize("quant", SCHEMES)
def test_the_server_answers_at_every_scheme_what_the_library_answers(
    model: RealModel, quant: str
) -> None:
    from zse.engine.llm import LLM
    from zse.engine.request import SamplingParams

    greedy = SamplingParams(max_tokens=24, temperature=0.0)
    prompts = model.prompts()[:2]
    with LLM(model.file(quant), device="cpu", max_context=2048) as llm:
        wanted = [llm.generate([prompt], greedy)[0].text for prompt in prompts]
    with serving(model.file(quant)) as client:
        name = client.models.list().data[0].id
        found = [
            client.completions.create(model=name, prompt=prompt, max_tokens=24, temperature=0)
            for prompt in prompts
        ]
    print(f"{model.name} {quant}: {wanted}")
    assert [answer.choices[0].text for answer in found] == wanted
    assert all(text.strip() for text in wanted)


@pytest.fixture(scope="module")
def coder(model: RealModel) -> Iterator[OpenAI]:
    """A server of each model that was taught to call tools."""
    if "qwen" not in model.name:
        pytest.skip(f"{model.name} was not taught to call tools")
    with serving(model.file("int8")) as client:
        yield client


def test_a_call_that_the_model_writes_by_itself_is_parsed(coder: OpenAI) -> None:
    choice = ask(coder, WEATHER, tools=TOOLS)
    assert choice.finish_reason == "tool_calls", choice.message.content
    called = choice.message.tool_calls[0].function
    assert called.name == "get_weather"
    assert json.loads(called.arguments) == {"city": "Paris", "unit": "celsius"}


def test_a_streamed_call_joins_to_the_one_in_one_piece(coder: OpenAI) -> None:
    whole = ask(coder, WEATHER, tools=TOOLS).message.tool_calls[0].function
    stream = coder.chat.completions.create(
        model=coder.models.list().data[0].id,
        messages=[{"role": "user", "content": WEATHER}],
        temperature=0,
        max_tokens=100,
        tools=list(TOOLS),
        stream=True,
    )
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == whole.name
    assert "".join(delta.function.arguments or "" for delta in deltas) == whole.arguments


@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_call_that_is_asked_for_fits_its_tool(coder: OpenAI, choice: str) -> None:
    forced = {"type": "function", "function": {"name": choice}} if choice == "add" else choice
    found = ask(coder, "What is 17 plus 25?", tools=TOOLS, tool_choice=forced)
    called = found.message.tool_calls[0].function
    arguments = json.loads(called.arguments)
    assert called.name == "add"
    assert (arguments["a"], arguments["b"]) == (17, 25)


def test_what_a_tool_said_is_in_the_answer(coder: OpenAI) -> None:
    # To the question alone a billion and a half say, in transformers too, that they cannot assist.
    question = "What is 17 plus 25? Tell me the number that the tool answers."
    calls = ask(coder, question, tools=TOOLS, tool_choice="required").message
    call = calls.tool_calls[0]
    answer = coder.chat.completions.create(
        model=coder.models.list().data[0].id,
        messages=[
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "42"},
        ],
        tools=list(TOOLS),
        tool_choice="none",  # half a billion parameters would rather call again
        temperature=0,
        max_tokens=60,
    )
    assert "42" in (answer.choices[0].message.content or "")


def test_an_answer_held_to_a_strict_schema_fits_it_and_makes_sense(coder: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}
    text = "Tell me about Guido van Rossum, who made Python, as JSON."
    choice = ask(coder, text, response_format=form, max_tokens=200)
    found = json.loads(choice.message.content)
    jsonschema.validate(found, PERSON)
    assert choice.finish_reason == "stop"
    assert "Guido" in found["name"]


def test_conversations_of_several_clients_at_once_get_their_own_answers(coder: OpenAI) -> None:
    from concurrent.futures import ThreadPoolExecutor

    alone = [ask(coder, text, max_tokens=16).message.content for text in CHAT_PROMPTS]
    with ThreadPoolExecutor(len(CHAT_PROMPTS)) as pool:
        together = list(
            pool.map(lambda text: ask(coder, text, max_tokens=16).message.content, CHAT_PROMPTS)
        )
    assert together == alone
