"""Answers that are held to a form: how they end, what is jumped over, what fails alone."""

from __future__ import annotations

import pytest
from grammar_walks import WordTokenizer

from zse.text.grammar import spec as forms
from zse.text.grammar.compile import GrammarCompiler

LETTERS = WordTokenizer.of([*"abcdefghij"])
COMPILER = GrammarCompiler(LETTERS, vocab_size=11, end_token_ids=(0,))


def grammar(pattern):
    return COMPILER.compile(forms.regex(pattern))


@pytest.fixture(params=["computes", "looks ahead"])
def make_core(request, engine):
    def make(**options):
        looks_ahead = request.param == "looks ahead"
        runner = engine.Runner(vocab_size=11, looks_ahead=looks_ahead, num_blocks=64)
        core = engine.core(runner, eos_token_ids=(0,), **options)
        core.least_jump = 1
        return core

    return make


def answer(engine, core, pattern, **params):
    params = {"max_tokens": 60, **params}
    core.add_request(engine.request("a", [1, 2, 3], grammar=grammar(pattern), **params))
    events = engine.run_to_end(core)
    return LETTERS.text_of(engine.tokens_of(events, "a")), events


def test_a_finished_form_ends_the_answer_without_a_token_more(engine, make_core):
    text, events = answer(engine, make_core(), "(ab|cd)e")
    assert text in ("abe", "cde")
    assert events[-1].finish_reason == "stop"
    assert not events[-1].is_stop_token
    assert [event.token_id for event in events].count(0) == 0


def test_an_end_that_the_form_allows_is_no_part_of_the_text(engine, make_core):
    for seed in range(30):
        _, events = answer(engine, make_core(), "a+", seed=seed, temperature=1.0, max_tokens=40)
        assert events[-1].finish_reason == "stop"
        assert (events[-1].token_id, events[-1].is_stop_token) == (0, True)


def test_a_form_that_is_cut_ends_by_length(engine, make_core):
    text, events = answer(engine, make_core(), "(abcd){9}", max_tokens=6)
    assert text == "abcdab"
    assert events[-1].finish_reason == "length"


def test_a_finished_form_ends_what_ignores_ends_or_asks_for_more(engine, make_core):
    for params in ({"ignore_eos": True}, {"min_tokens": 9, "max_tokens": 20}):
        text, events = answer(engine, make_core(), "ab", **params)
        assert text == "ab"
        assert events[-1].finish_reason == "stop"


def test_what_ignores_ends_goes_on_as_long_as_the_form_does(engine, make_core):
    text, events = answer(engine, make_core(), "a{2,7}", ignore_eos=True, max_tokens=20)
    assert text == "aaaaaaa"
    assert events[-1].finish_reason == "stop"
    text, _ = answer(engine, make_core(), "a+", min_tokens=5, max_tokens=12)
    assert len(text) >= 5


def test_tokens_without_a_choice_take_one_step_together(engine, make_core):
    core = make_core()
    text, _ = answer(engine, core, "abcdefghij(a|b)jihgfedcba")
    assert len(text) == 21
    assert core.stats().steps <= 8
    assert core.stats().generated_tokens == 21


def test_log_probabilities_take_a_step_for_each_token(engine, make_core):
    core = make_core()
    text, events = answer(engine, core, "abcdefghij", logprobs=1)
    assert text == "abcdefghij"
    assert core.stats().steps >= 10
    assert all(event.logprob is not None for event in events)


def test_a_jump_takes_no_block_from_another(engine):
    runner = engine.Runner(vocab_size=11, num_blocks=4, block_size=4, looks_ahead=True)
    core = engine.core(runner, eos_token_ids=(0,), prefix_cache=False)
    core.least_jump = 0
    core.add_request(engine.request("plain", [1] * 5, max_tokens=6, ignore_eos=True))
    events = core.step()
    core.add_request(engine.request("a", [2], grammar=grammar("(abcd){2}"), max_tokens=8))
    events += engine.run_to_end(core)
    assert LETTERS.text_of(engine.tokens_of(events, "a")) == "abcdabcd"
    assert len(engine.tokens_of(events, "plain")) == 6


def test_an_answer_that_cannot_keep_its_form_fails_alone(engine, make_core, caplog):
    core = make_core()
    core.add_request(engine.request("a", [1], grammar=grammar("(a|b){20}"), max_tokens=20))
    core.add_request(engine.request("b", [1], grammar=grammar("a{20}|b{20}"), max_tokens=20))
    events = [event for _ in range(3) for event in core.step()]
    (broken,) = core._requests["a"]
    broken.grammar.advance(9)
    events += engine.run_to_end(core)
    ends = {event.request_id: event.finish_reason for event in events if event.finish_reason}
    assert ends == {"a": "abort", "b": "stop"}
    assert "cannot keep its form" in caplog.text


def test_a_core_is_closed_while_a_step_waits_for_its_masks(engine):
    core = engine.core(engine.Runner(vocab_size=11, looks_ahead=True), eos_token_ids=(0,))
    core.add_request(engine.request("a", [1], grammar=grammar("(a|b){20}"), max_tokens=20))
    core.step()
    core.close()
    assert core.runner.is_closed


def test_choices_of_a_request_have_forms_of_their_own(engine, make_core):
    core = make_core()
    params = {"n": 3, "temperature": 1.0, "seed": 4, "max_tokens": 9}
    core.add_request(engine.request("a", [1], grammar=grammar("[a-j]{6}"), **params))
    events = engine.run_to_end(core)
    texts = [LETTERS.text_of(engine.tokens_of(events, "a", index)) for index in range(3)]
    assert [len(text) for text in texts] == [6, 6, 6]
    assert len(set(texts)) == 3
