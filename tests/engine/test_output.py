from __future__ import annotations

import pytest

from zse.engine.output import RequestText
from zse.engine.request import Request, SamplingParams, TokenEvent


@pytest.fixture
def make_text(letters):
    def make(**params):
        request = Request(
            request_id="a", prompt_token_ids=[1, 2, 3], params=SamplingParams(**params)
        )
        return RequestText(letters, request)

    return make


def event(letter, *, index=0, reason=None, **fields):
    token_id = None if letter is None else ord(letter) - 32
    return TokenEvent(
        request_id="a", index=index, token_id=token_id, finish_reason=reason, **fields
    )


def push_all(text, letters, *, last_reason="length"):
    deltas = []
    for position, letter in enumerate(letters):
        reason = last_reason if position == len(letters) - 1 else None
        deltas.append(text.push(event(letter, reason=reason)))
    return [delta for delta in deltas if delta is not None]


def test_each_token_becomes_a_delta_and_the_last_one_has_the_reason(make_text):
    deltas = push_all(make_text(), "abc")
    assert [(d.text, d.finish_reason) for d in deltas] == [
        ("a", None),
        ("b", None),
        ("c", "length"),
    ]
    assert {d.prompt_tokens for d in deltas} == {3}


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(make_text):
    text = make_text(stop="cd")
    deltas = push_all(text, "abcdef")
    assert "".join(d.text for d in deltas) == "ab"
    assert (deltas[-1].finish_reason, deltas[-1].stop) == ("stop", "cd")
    assert text.is_finished
    assert text.push(event("g")) is None


def test_text_that_only_began_like_a_stop_is_delivered_at_the_end(make_text):
    deltas = push_all(make_text(stop="cdX"), "abcd")
    assert "".join(d.text for d in deltas) == "abcd"
    assert (deltas[-1].finish_reason, deltas[-1].stop) == ("length", None)


def test_a_stop_text_before_min_tokens_does_not_end_the_answer(make_text):
    deltas = push_all(make_text(stop="b", min_tokens=3), "abcab")
    assert "".join(d.text for d in deltas) == "abca"
    assert deltas[-1].finish_reason == "stop"


def test_the_token_that_stops_is_counted_but_not_shown(make_text):
    text = make_text(logprobs=0)
    text.push(event("a", logprob=-0.5))
    delta = text.push(event("!", reason="stop", is_stop_token=True, logprob=-0.1))
    assert delta.text == ""
    assert delta.token_ids == [ord("!") - 32]
    assert delta.logprobs == ()


def test_tokens_held_back_travel_with_the_next_text(make_text):
    text = make_text(stop="bX", logprobs=0)
    first = text.push(event("b", logprob=-1.0))
    second = text.push(event("c", logprob=-2.0))
    assert first is None
    assert second.text[:1] == "b"
    assert len(second.token_ids) == 2
    assert [p.logprob for p in second.logprobs] == [-1.0, -2.0]


def test_logprobs_carry_text_and_bytes_of_token_and_alternatives(make_text):
    top = [(ord("a") - 32, -0.5), (ord("z") - 32, -3.0)]
    delta = make_text(logprobs=2).push(event("a", logprob=-0.5, top=top))
    (entry,) = delta.logprobs
    assert (entry.token, entry.bytes, entry.logprob) == ("a", [97], -0.5)
    assert [(t.token, t.logprob, t.bytes) for t in entry.top] == [
        ("a", -0.5, [97]),
        ("z", -3.0, [122]),
    ]


def test_choices_grow_apart(make_text):
    text = make_text(n=2)
    assert text.push(event("a", index=1)).index == 1
    text.push(event("b", index=1, reason="length"))
    assert not text.is_finished
    text.push(event(None, index=0, reason="abort"))
    assert text.is_finished


def test_a_choice_is_plain_from_its_first_token_to_its_end(make_text):
    text = make_text(n=2)
    assert text.plain == set()
    text.push(event("a", index=1))
    assert text.plain == {1}
    text.push(event("b", index=1, reason="length"))
    assert text.plain == set()


@pytest.mark.parametrize("params", [{"stop": "x"}, {"logprobs": 0}])
def test_a_choice_whose_tokens_need_more_than_their_text_is_never_plain(make_text, params):
    text = make_text(**params)
    text.push(event("a", logprob=-1.0 if "logprobs" in params else None))
    assert text.plain == set()
