from __future__ import annotations

import math

import pytest

from zse.engine.request import SamplingParams
from zse.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", 1e300),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3.0),
        ("min_tokens", 300),
        ("min_tokens", -1),
        ("logprobs", 21),
        ("logprobs", -1),
        ("n", 0),
        ("n", 129),
        ("stop", ("",)),
        ("stop", ("x",) * 65),
        ("stop", ("x", "y" * 1025)),
        ("stop_token_ids", tuple(range(257))),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(param, value):
    with pytest.raises(InvalidParameterError, match=param) as caught:
        SamplingParams(**{param: value})
    assert caught.value.param == param


def test_max_new_tokens_is_another_name_for_max_tokens():
    assert SamplingParams(max_new_tokens=7).max_tokens == 7


def test_a_refusal_does_not_say_all_of_what_it_refuses():
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(stop=("", "y" * 100_000))
    assert len(str(caught.value)) < 400


def test_a_single_stop_text_and_a_list_become_a_tuple():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[3]).stop == ("a", "b")


@pytest.mark.parametrize("top_k", [-1, 2**31, 10**30])
def test_top_k_of_minus_one_or_of_more_than_any_vocabulary_keeps_all(top_k):
    assert SamplingParams(top_k=top_k).top_k == 0


def test_no_limit_accepts_any_min_tokens():
    assert SamplingParams(max_tokens=None, min_tokens=5000).min_tokens == 5000
