"""Text completions: the best of several, gaps, bad words, what is used so far; and chats that go on."""

import json

import pytest

from zse.serve.openai.completion_plan import _mean_logprob


def test_the_best_of_several_answers_are_the_likeliest(real):
    body = {"temperature": 1.5, "seed": 7, "max_tokens": 4, "logprobs": 0}
    every = real.complete("Hello", **body, n=6).json()["choices"]
    answer = real.complete("Hello", **body, n=2, best_of=6).json()
    means = sorted((sum(c["logprobs"]["token_logprobs"]) / 4 for c in every), reverse=True)
    best = [sum(c["logprobs"]["token_logprobs"]) / 4 for c in answer["choices"]]
    assert best == pytest.approx(means[:2])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 24
    plain = real.complete("Hello", **{**body, "logprobs": None}, n=2, best_of=6).json()
    assert [c["logprobs"] for c in plain["choices"]] == [None, None]
    assert [c["text"] for c in plain["choices"]] == [c["text"] for c in answer["choices"]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "x", "echo": True}, "echo"),
        ({"suffix": "x", "prompt": ["a", "b"]}, "suffix"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(real, fields, param, check_error):
    body = {"prompt": "a", **fields}
    check_error(real("POST", "/v1/completions", json=body), 400, param=param)


def test_a_gap_is_asked_for_with_the_tokens_of_the_model(real, loaded):
    ids = {token.text: token.token_id for token in loaded.tokenizer.facts.added}
    encode = loaded.tokenizer.encode
    prompt = [
        ids["<|fim_prefix|>"],
        *encode("def f("),
        ids["<|fim_suffix|>"],
        *encode("): <|fim_pad|>", parse_special=False),
        ids["<|fim_middle|>"],
    ]
    body = {"max_tokens": 8, "temperature": 0, "logprobs": 0}
    pad = ids["<|fim_pad|>"]
    filled = real.complete("def f(", suffix="): <|fim_pad|>", **body).json()
    plain = real.complete(prompt, **body, stop_token_ids=[pad]).json()
    assert filled["choices"] == plain["choices"]
    for usage in (filled["usage"], plain["usage"]):
        del usage["completion_tokens_details"]  # how many drafts were worth a check is measured
    assert filled["usage"] == {**plain["usage"], "prompt_tokens_details": {"cached_tokens": 0}}
    forced = {"logit_bias": {str(pad): 100}}
    ended = real.complete("def f(", suffix="):", **body, **forced).json()["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == ("", "stop")


def test_a_model_without_tokens_for_gaps_refuses_a_suffix(call, make_caller, loaded, check_error):
    from dataclasses import replace

    facts = replace(loaded.tokenizer.facts, added=())
    tokenizer = type(loaded.tokenizer)(loaded.tokenizer.engine, facts)
    bare = make_caller(replace(loaded, tokenizer=tokenizer))
    response = bare.complete("a", suffix="b")
    check_error(response, 400, param="suffix", code="unsupported_parameter")


def test_bad_words_never_come(real, loaded):
    body = {"temperature": 0, "max_tokens": 6, "logprobs": 0}
    tokens = real.complete("Hello", **body).json()["choices"][0]["logprobs"]["tokens"]
    bad = next(token for token in tokens if token.isascii())
    told = real.complete("Hello", **body, bad_words=[bad]).json()["choices"][0]["logprobs"]
    assert bad not in told["tokens"]


def test_an_answer_is_made_of_the_allowed_tokens_alone_to_its_limit(real, loaded):
    allowed = [70, 71, 90]
    body = {"max_tokens": 12, "temperature": 1, "logprobs": 0, "allowed_token_ids": allowed}
    choice = real.complete("Hello", **body).json()["choices"][0]
    texts = {loaded.tokenizer.token_text(token_id) for token_id in allowed}
    assert set(choice["logprobs"]["tokens"]) <= texts
    assert (len(choice["logprobs"]["tokens"]), choice["finish_reason"]) == (12, "length")
    (end,) = loaded.tokenizer.eos_ids
    body["logit_bias"] = {str(end): 100}
    assert real.complete("Hello", **body).json()["choices"][0]["finish_reason"] == "length"
    body["allowed_token_ids"] = [*allowed, end]
    ended = real.complete("Hello", **body).json()["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == ("", "stop")


@pytest.mark.parametrize("token_ids", [[], [262], [-1], [1] * 16385])
def test_allowed_tokens_that_are_none_of_the_model_are_refused(real, token_ids, check_error):
    response = real.complete("Hello", allowed_token_ids=token_ids)
    check_error(response, 400, param="allowed_token_ids")


def test_an_answer_cannot_have_a_form_beside_allowed_tokens(real, check_error):
    response = real.complete("Hello", allowed_token_ids=[70], guided_choice=["a"])
    check_error(response, 400, param="allowed_token_ids")


def test_a_bad_word_of_several_tokens_is_refused_by_name(real, check_error):
    response = real.complete("Hello", bad_words=["a", "two words"])
    message = check_error(response, 400, param="bad_words", code="unsupported_parameter")
    assert "word 1 is 9 tokens" in message
    check_error(real.complete("Hello", bad_words=["a"] * 65), 400, param="bad_words")
    check_error(real.complete("Hello", bad_words=[""]), 400, param="bad_words")


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_a_stream_says_what_has_been_used_so_far_where_it_is_asked_to(real, route):
    options = {"continuous_usage_stats": True}
    response = getattr(real, route)(
        "Hello", stream=True, stream_options=options, max_tokens=3, allowed_token_ids=[70, 71]
    )
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    used = [json.loads(event)["usage"] for event in events]
    counts = [one["completion_tokens"] for one in used]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 3
    assert {one["prompt_tokens"] for one in used} == {used[0]["prompt_tokens"]}


def test_special_tokens_are_added_unless_they_are_declined(real, loaded, monkeypatch):
    seen = []
    encode = loaded.tokenizer.encode
    monkeypatch.setattr(
        loaded.tokenizer,
        "encode",
        lambda text, **options: seen.append(options) or encode(text, **options),
    )
    real.complete("a", max_tokens=1)
    real.complete("a", max_tokens=1, add_special_tokens=False)
    assert [options["add_special_tokens"] for options in seen] == [True, False]


def continued(real, text, **fields):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    fields = {"max_tokens": 4, "temperature": 0, **fields}
    return real("POST", "/v1/chat/completions", json={"messages": messages, **fields})


@pytest.mark.parametrize("text", ["Well, ", "Well", " </assistant> "])
def test_an_answer_goes_on_with_the_last_message(real, text):
    prompt = f"<user>Hi</user><assistant>{text}"
    wanted = real.complete(prompt, max_tokens=4, temperature=0).json()["choices"][0]["text"]
    answer = continued(real, text, continue_final_message=True).json()
    assert answer["choices"][0]["message"]["content"] == wanted
    echoed = continued(real, text, continue_final_message=True, echo=True).json()
    assert echoed["choices"][0]["message"]["content"] == text + wanted
    stream = continued(real, text, continue_final_message=True, echo=True, stream=True).text
    deltas = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    pieces = [delta["choices"][0]["delta"].get("content") or "" for delta in deltas]
    assert "".join(pieces) == text + wanted


def test_without_a_generation_prompt_the_conversation_ends_behind_its_messages(real):
    prompt = "<user>Hi</user><assistant>Well</assistant>"
    wanted = real.complete(prompt, max_tokens=4, temperature=0).json()["choices"][0]["text"]
    answer = continued(real, "Well", add_generation_prompt=False).json()
    assert answer["choices"][0]["message"]["content"] == wanted


def test_a_message_that_cannot_be_continued_is_refused(real, call, check_error):
    both = continued(real, "x", continue_final_message=True, add_generation_prompt=True)
    check_error(both, 400, param="continue_final_message")
    check_error(real.chat("Hi", continue_final_message=True), 400, param="continue_final_message")


def test_an_answer_without_tokens_is_the_unlikeliest(scripted):
    from zse.serve.generation import WholeChoice

    assert _mean_logprob(WholeChoice()) == float("-inf")
