from __future__ import annotations

import threading
from contextlib import closing

import numpy
import pytest

from zse.engine.inputs import messages_of
from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import ContextLengthError, InvalidParameterError, UsageError


@pytest.fixture(scope="module")
def llm(random_zse):
    with LLM(random_zse, device="cpu", num_blocks=64, block_size=8, threads=1) as model:
        yield model


def greedy(**fields):
    fields.setdefault("max_tokens", 12)
    return SamplingParams(temperature=0.0, ignore_eos=True, **fields)


def test_a_text_a_list_of_tokens_and_a_list_of_texts_are_prompts(llm):
    tokens = llm.tokenizer.encode("hello")
    (by_text,) = llm.generate("hello", greedy())
    (by_tokens,) = llm.generate(tokens, greedy())
    many = llm.generate(["other", "hello", tokens], greedy())
    assert by_text.prompt_token_ids == tokens
    assert by_text.outputs[0].text == by_tokens.text == many[1].text == many[2].text
    assert many[0].text != many[1].text


def test_no_prompts_give_no_answers(llm):
    assert llm.generate([], greedy()) == []


def test_the_answer_says_how_it_ended_and_what_it_took(llm):
    llm.generate("a prompt of more than a block", greedy())
    (output,) = llm.generate("a prompt of more than a block", greedy())
    completion = output.outputs[0]
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 12
    assert completion.prompt_tokens == 29
    assert completion.cached_tokens == 24


def test_streamed_pieces_join_to_the_generated_text(llm):
    deltas = list(llm.stream("stream me", greedy()))
    (whole,) = llm.generate("stream me", greedy())
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert deltas[-1].finish_reason == "length"


def test_two_streams_can_be_read_in_turns(llm):
    first, second = (llm.stream(text, greedy()) for text in ("one", "two"))
    texts = ["", ""]
    for index in range(100):
        delta = next((first, second)[index % 2], None)
        texts[index % 2] += delta.text if delta else ""
    assert texts == [output.text for output in llm.generate(["one", "two"], greedy())]


def test_a_closed_stream_frees_its_blocks(llm):
    with closing(llm.stream("to be dropped", greedy(max_tokens=100))) as stream:
        next(stream)
        assert llm.stats().num_running == 1
    assert llm.stats().num_running == 0
    assert llm.stats().kv_blocks_used == 0


def test_a_stop_text_cuts_the_answer(llm):
    whole = llm.generate("stop", greedy())[0].text
    stop = whole[3:5]
    cut = llm.generate("stop", greedy(stop=stop))[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.outputs[0].finish_reason == "stop"


def test_choices_with_a_seed_repeat(llm):
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=8, ignore_eos=True)
    first, second = (llm.generate("choices", params)[0] for _ in range(2))
    texts = [completion.text for completion in first.outputs]
    assert texts == [completion.text for completion in second.outputs]
    assert len(set(texts)) == 3


def test_logprobs_stand_beside_their_tokens(llm):
    completion = llm.generate("logprobs", greedy(logprobs=3))[0].outputs[0]
    assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
    for entry in completion.logprobs:
        assert len(entry.top) == 3
        assert entry.top[0].token_id == entry.token_id
        assert entry.logprob == pytest.approx(entry.top[0].logprob)
        assert entry.logprob <= 0


def test_a_bias_forces_and_forbids_tokens(llm):
    target = llm.tokenizer.encode("Q")[0]
    forced = llm.generate("bias", greedy(logit_bias={target: 100.0}))[0]
    assert forced.token_ids == [target] * 12
    free = llm.generate("bias", greedy())[0].token_ids[0]
    banned = llm.generate("bias", greedy(logit_bias={free: -100.0}))[0]
    assert banned.token_ids[0] != free


def test_chat_renders_the_template_of_the_file(llm):
    messages = [{"role": "user", "content": "hi"}]
    prompt = llm.chat_prompt(messages)
    assert llm.tokenizer.decode(prompt) == "<|user|>hi<|assistant|>"
    assert llm.chat(messages, greedy()).text == llm.generate([prompt], greedy())[0].text


def test_a_text_is_a_conversation_of_one_message(llm):
    assert llm.chat_prompt("hi") == llm.chat_prompt([{"role": "user", "content": "hi"}])
    whole = llm.chat([{"role": "user", "content": "hi"}], greedy())
    assert llm.chat("hi", greedy()).text == whole.text


def test_a_list_of_conversations_gives_a_list_of_answers_in_one_batch(llm):
    asked = [[{"role": "user", "content": "one"}], "two", [{"role": "user", "content": "three"}]]
    before = llm.stats().steps
    found = llm.chat(asked, greedy())
    num_steps = llm.stats().steps - before
    assert [output.text for output in found] == [llm.chat(each, greedy()).text for each in asked]
    assert num_steps < 2 * 12
    assert llm.chat([], greedy()) == []


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (5, "messages is a int, expected a text or a list"),
        ({"role": "user", "content": "x"}, "messages is a dict, expected a text or a list"),
        ([{"role": "user", "content": "x"}, "y"], "both messages and other things"),
        ([[]], "a conversation has no messages"),
        ([["x"]], "message 0 is a str, expected a mapping"),
        ([7], "a conversation is a int, expected a text or a list"),
        ([{"content": "x"}], "message 0 has the role None"),
        (
            [{"role": "user", "content": "x"}, {"role": "user"}],
            "the content of message 1 is a None",
        ),
        ([{"role": "user", "content": None}], "the content of message 0 is a None"),
    ],
)
def test_what_is_no_conversation_is_refused_in_words(llm, messages, words):
    with pytest.raises(InvalidParameterError, match=words) as caught:
        llm.chat(messages)
    assert caught.value.param == "messages"
    assert '"role": "user"' in caught.value.hint


def test_an_answer_that_only_calls_tools_needs_no_content():
    message = {"role": "assistant", "content": None, "tool_calls": []}
    assert messages_of([message]) == [message]


@pytest.mark.parametrize("prompts", [5, ["x", 5], [[1, "x"]], [{"role": "user", "content": "x"}]])
def test_what_is_no_prompt_is_refused_in_words(llm, prompts):
    with pytest.raises(InvalidParameterError, match="expected a text or a list of token ids"):
        llm.generate(prompts)


def test_logits_are_a_row_of_numbers_for_each_token(llm):
    rows = llm.logits([1, 2, 3])
    array = numpy.asarray(rows)
    assert array.shape == (3, llm.file.header.model_config["vocab_size"])
    assert array.dtype == numpy.float32
    assert rows[-1][5] == array[-1, 5]
    likeliest = max(range(len(rows[-1])), key=rows[-1].__getitem__)
    assert [likeliest] == llm.generate([[1, 2, 3]], greedy(max_tokens=1))[0].token_ids


def test_what_auto_came_to_is_told(random_zse):
    with LLM(random_zse, num_blocks=8, threads=1) as model:
        assert model.device.name in ("cpu", "cuda:0")
        assert model.device.hardware in str(model.device)


def test_threads_share_the_engine(llm):
    prompts = [f"thread {index}" for index in range(6)]
    expected = [output.text for output in llm.generate(prompts, greedy())]
    found = [""] * len(prompts)

    def work(index):
        found[index] = llm.generate(prompts[index], greedy())[0].text

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_an_overflow_and_a_bad_token_are_refused_and_leave_no_work(llm):
    with pytest.raises(ContextLengthError, match="maximum context length is 256 tokens"):
        llm.generate(["fine", "x" * 300], greedy())
    with pytest.raises(InvalidParameterError):
        llm.generate([[10_000]], greedy())
    assert llm.stats().num_running + llm.stats().num_waiting == 0


def test_without_parameters_the_answer_fits_in_the_context(llm):
    (output,) = llm.generate("y" * 250)
    assert len(output.token_ids) <= 6


def test_a_closed_model_says_so(random_zse):
    model = LLM(random_zse, device="cpu", num_blocks=8, threads=1)
    model.close()
    model.close()
    with pytest.raises(UsageError, match="closed"):
        model.generate("x")
    with pytest.raises(UsageError, match="closed"):
        model.logits([1])


@pytest.mark.timeout(60)
def test_a_stream_whose_model_is_closed_ends_with_an_error(random_zse):
    model = LLM(random_zse, device="cpu", num_blocks=8, threads=1)
    with closing(model.stream("x", greedy())) as deltas:
        next(deltas)
        model.close()
        with pytest.raises(UsageError, match="closed"):
            list(deltas)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_gib": -1},
        {"kv_gib": float("inf")},
        {"kv_gib": float("nan")},
        {"threads": 100_000},
        {"block_size": 0},
        {"max_sequences": 0},
        {"max_batch_tokens": 0},
    ],
)
def test_a_size_without_meaning_is_refused(random_zse, options):
    with pytest.raises(UsageError):
        LLM(random_zse, device="cpu", **options)
