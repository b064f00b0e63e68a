"""What is told of prompts: echoed log-probabilities, vLLM's form, and the exact bodies of lm-eval."""

import json

import numpy as np
import pytest

PROMPT = "To be or not"


def logprobs_of(loaded, prompt):
    """Return float64 log-probabilities [tokens, vocab] from the logits of the model itself."""
    logits = np.asarray(loaded.engine._core.logits(prompt), dtype=np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - (logits.max(1, keepdims=True))
    )


def test_echo_tells_the_log_probabilities_of_the_prompt_before_those_of_the_answer(real, loaded):
    answer = real.complete(PROMPT, echo=True, logprobs=2, max_tokens=3, temperature=0).json()
    choice = answer["choices"][0]
    ids = loaded.tokenizer.encode(PROMPT)
    told, expected = choice["logprobs"], logprobs_of(loaded, ids)
    assert choice["text"].startswith(PROMPT)
    assert {len(values) for values in told.values()} == {len(ids) + 3}
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert "".join(told["tokens"][: len(ids)]) == PROMPT
    assert told["text_offset"] == list(range(len(ids) + 3))
    for place in range(1, len(ids)):
        row = expected[place - 1]
        assert told["token_logprobs"][place] == pytest.approx(row[ids[place]], abs=1e-3)
        top = told["top_logprobs"][place]
        assert max(top.values()) == pytest.approx(row.max(), abs=1e-3)
        assert top[told["tokens"][place]] == told["token_logprobs"][place]
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_a_prompt_can_be_told_of_without_an_answer(real, loaded):
    body = {"echo": True, "logprobs": 1, "temperature": 0}
    whole = real.complete(PROMPT, **body, max_tokens=1).json()["choices"][0]["logprobs"]
    answer = real.complete(PROMPT, **body, max_tokens=0).json()
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] == {name: values[:-1] for name, values in whole.items()}
    assert answer["usage"]["completion_tokens"] == 0
    longest = [65] * loaded.max_context
    full = real.complete(longest, **body, max_tokens=0).json()["choices"][0]
    assert len(full["logprobs"]["tokens"]) == loaded.max_context


def test_a_second_question_is_answered_alike_though_the_prompt_is_cached(real):
    long = PROMPT * 20
    body = {"echo": True, "logprobs": 0, "max_tokens": 2, "temperature": 0}
    first = real.complete(long, **body).json()
    second = real.complete(long, **body).json()
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_logprobs_of_nought_alternatives_are_of_the_chosen_tokens(real):
    told = real.complete(PROMPT, logprobs=0, max_tokens=4).json()["choices"][0]["logprobs"]
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top == {token: logprob}


def test_a_stream_begins_with_the_echo_and_its_log_probabilities(real):
    body = {"echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0, "n": 2}
    whole = real.complete([PROMPT, "And"], **body).json()["choices"]
    response = real.complete([PROMPT, "And"], **body, stream=True)
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    for index, choice in enumerate(whole):
        parts = [c for e in events for c in json.loads(e)["choices"] if c["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        told = [part["logprobs"] for part in parts if part["logprobs"]]
        assert len(told) > 1
        joined = {name: [x for one in told for x in one[name]] for name in told[0]}
        values = joined.pop("token_logprobs")[1:]
        assert values == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-3)
        assert joined["tokens"] == choice["logprobs"]["tokens"]
        assert joined["text_offset"] == choice["logprobs"]["text_offset"]
        assert joined["top_logprobs"][0] is None


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_prompt_logprobs_have_the_form_of_vllm(real, loaded, route):
    answer = getattr(real, route)(PROMPT, prompt_logprobs=2, max_tokens=1).json()
    holder = answer if route == "chat" else answer["choices"][0]
    told = holder["prompt_logprobs"]
    assert len(told) == answer["usage"]["prompt_tokens"]
    assert told[0] is None
    for entry in told[1:]:
        ranks = sorted(one["rank"] for one in entry.values() if one["rank"])
        assert ranks == [1, 2]
        assert 2 <= len(entry) <= 3
        for token_id, one in entry.items():
            assert one["decoded_token"] == loaded.tokenizer.token_text(int(token_id))
            assert one["logprob"] <= 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
@pytest.mark.parametrize("route", ["chat", "complete"])
def test_what_cannot_be_told_of_a_prompt_is_refused(real, route, fields, param, check_error):
    check_error(getattr(real, route)(PROMPT, **fields), 400, param=param)


def test_more_than_an_answer_may_hold_is_not_told_of_prompts(real, check_error):
    body = {"echo": True, "logprobs": 20, "max_tokens": 0}
    message = check_error(real.complete([[65] * 512] * 25, **body), 400, param="prompt")
    assert "268800 log-probabilities" in message


def test_the_bodies_of_lm_eval_are_answered_as_it_reads_them(real, loaded):
    """Loglikelihood: context and continuation as token ids, one token more, echo, one logprob."""
    context, continuation = [70, 71, 72], [73, 74]
    body = {
        "model": "bytes",
        "prompt": [context + continuation, context + continuation[::-1]],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    answer = real("POST", "/v1/completions", json=body).json()
    for prompt, choice in zip(body["prompt"], answer["choices"], strict=True):
        told = choice["logprobs"]
        found = told["token_logprobs"][len(context) : -1]
        expected = logprobs_of(loaded, prompt)
        wanted = [expected[place - 1][prompt[place]] for place in (3, 4)]
        assert found == pytest.approx(wanted, abs=1e-3)
        for token, top in zip(told["tokens"][3:-1], told["top_logprobs"][3:-1], strict=True):
            best = max(top.values())
            assert (top[token] == best) in (True, False)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_at_once_is_told_so_that_no_token_of_the_prompt_is_taken_for_it(
    real, loaded, stream
):
    """lm-eval leaves out the last log-probability: that of the one token that was generated."""
    (end,) = loaded.tokenizer.eos_ids
    prompt = [70, 71, 72, 73]
    body = {"echo": True, "logprobs": 1, "max_tokens": 1, "logit_bias": {str(end): 100}}
    answer = real.complete(prompt, stream=stream, **body)
    if stream:
        said = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    else:
        said = [answer.json()]
    told = [one["choices"][0]["logprobs"] for one in said if one["choices"][0]["logprobs"]]
    tokens = [token for each in told for token in each["tokens"]]
    values = [value for each in told for value in each["token_logprobs"]]
    assert said[-1]["choices"][0]["finish_reason"] == "stop"
    assert tokens[-1] == loaded.tokenizer.token_text(end)
    assert len(values) == len(prompt) + 1
    assert "".join(one["choices"][0]["text"] for one in said) == "".join(tokens[:-1])
    plain = real.complete(prompt, **{**body, "echo": False}).json()["choices"][0]
    assert plain["logprobs"]["tokens"] == []  # as OpenAI tells it


def test_the_bodies_of_lm_eval_that_generate_are_answered(real, loaded):
    """It takes its tokens from the server, and says of a message that it is text."""
    assert real("GET", "/tokenizer_info").json()["eos_token"] == "</s>"
    body = {"prompt": PROMPT, "add_special_tokens": False}
    ids = real("POST", "/tokenize", json=body).json()["tokens"]
    common = {"model": "bytes", "max_tokens": 8, "temperature": 0, "seed": 1234}
    stop = ["\n", "</s>"]
    texts = {"prompt": [ids], "stop": stop, **common}
    answer = real("POST", "/v1/completions", json=texts).json()
    assert [choice["index"] for choice in answer["choices"]] == [0]
    assert not any(text in answer["choices"][0]["text"] for text in stop)
    messages = [{"role": "user", "content": PROMPT, "type": "text"}]
    chat = real("POST", "/v1/chat/completions", json={"messages": messages, "stop": stop, **common})
    assert chat.status_code == 200
    assert isinstance(chat.json()["choices"][0]["message"]["content"], str)
