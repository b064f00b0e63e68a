"""The whole way on the built-in model: name in, converted once, text out."""

from __future__ import annotations

import asyncio
import re

import pytest
from async_asking import asked

from zse.engine.async_engine import AsyncEngine
from zse.engine.llm import LLM
from zse.engine.loading import load_model
from zse.engine.request import SamplingParams
from zse.errors import InvalidParameterError
from zse.options import load_options
from zse.settings import load_settings

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("ZSE_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def llm(cache_dir):
    with LLM("tiny", device="cpu", num_blocks=64, threads=1) as model:
        yield model


def test_the_name_is_converted_once_into_the_cache(llm, cache_dir):
    assert llm.path.is_relative_to(cache_dir)
    assert len(list(cache_dir.rglob("*.zse"))) == 1


def test_an_option_that_there_is_none_of_is_refused_before_a_model_is_looked_for():
    with pytest.raises(TypeError, match="no option num_block"):
        LLM("/no/such", num_block=64)


def test_a_model_this_small_is_computed_by_one_thread_unless_somebody_says(cache_dir):
    for wanted, taken in ((0, 1), (2, 2)):
        with LLM("tiny", device="cpu", num_blocks=64, threads=wanted) as model:
            assert model.device.threads == taken


def test_it_knows_a_capital_and_stops_by_itself(llm):
    output = llm.chat(CAPITAL, GREEDY)
    assert "Paris" in output.text
    assert output.outputs[0].finish_reason == "stop"


def test_streamed_chat_is_the_same_text(llm):
    prompt = llm.chat_prompt(CAPITAL)
    pieces = [delta.text for delta in llm.stream(prompt, GREEDY)]
    assert len(pieces) > 1
    assert "".join(pieces) == llm.chat(CAPITAL, GREEDY).text


def test_a_batch_of_chats_answers_each_as_if_alone(llm):
    countries = ["France", "Italy", "Spain", "Japan", "Egypt", "Norway"]
    prompts = [
        llm.chat_prompt([{"role": "user", "content": f"What is the capital of {name}?"}])
        for name in countries
    ]
    alone = [llm.generate([prompt], GREEDY)[0].text for prompt in prompts]
    assert [output.text for output in llm.generate(prompts, GREEDY)] == alone


def test_the_asynchronous_engine_gives_the_same_answer(llm, cache_dir):
    loaded = load_model(
        "tiny", load_options(device="cpu", num_blocks=64, threads=1), load_settings()
    )
    engine = AsyncEngine(loaded.core, loaded.tokenizer)

    async def collect():
        prompt = llm.chat_prompt(CAPITAL)
        return [delta async for delta in engine.generate(asked(prompt, GREEDY))]

    try:
        deltas = asyncio.run(collect())
    finally:
        engine.close()
        loaded.close()
    assert "".join(delta.text for delta in deltas) == llm.chat(CAPITAL, GREEDY).text
    assert deltas[-1].finish_reason == "stop"


def test_answers_are_held_to_a_form(llm):
    from zse.text.grammar import spec as forms

    output = llm.generate("Say", SamplingParams(temperature=1.5, n=3), form=forms.regex("[0-9]{4}"))
    assert all(re.fullmatch("[0-9]{4}", answer.text) for answer in output[0].outputs)
    answer = llm.chat("Yes or no?", form=forms.choice(["yes", "no"]))
    assert answer.text in ("yes", "no")
    (delta, *rest) = llm.stream("Say", form=forms.choice(["abc"]))
    assert delta.text + "".join(other.text for other in rest) == "abc"


def test_texts_become_vectors_of_length_one_and_alike_ones_lie_together(llm):
    texts = ["What is the capital of France?", "What is the capital of Italy?", "9 - 4 ="]
    first, second, other = llm.embed(texts)
    products = [
        sum(a * b for a, b in zip(first, one, strict=True)) for one in (first, second, other)
    ]
    assert products[0] == pytest.approx(1.0, abs=1e-5)
    assert products[1] > products[2]


def test_a_vector_depends_on_the_text_alone(llm):
    texts = ["one", "two words", "three words here"]
    together = llm.embed(texts, pooling="mean")
    for text, vector in zip(texts, together, strict=True):
        (alone,) = llm.embed(text, pooling="mean")
        assert alone.tolist() == pytest.approx(vector.tolist(), abs=2e-2)
    assert len(llm.embed("one", dimensions=8)[0]) == 8


def test_an_answer_goes_on_around_vectors(llm):
    prompt = llm.chat_prompt(CAPITAL)
    pieces = llm.stream(prompt, GREEDY)
    text = next(pieces).text
    llm.embed(["between two tokens"])
    assert text + "".join(delta.text for delta in pieces) == llm.chat(CAPITAL, GREEDY).text


def test_a_text_of_nothing_has_no_vector(llm):
    with pytest.raises(InvalidParameterError, match="without tokens"):
        llm.embed([[]])
