"""How an answer is led through a form: masks, ends, drafts, thoughts before it, forced tokens."""

from __future__ import annotations

import ctypes
import json
import random
from dataclasses import replace

import jsonschema
import pytest
from grammar_walks import END, WordTokenizer, allowed_by, compiler_for, walk
from random_schemas import random_schema

from zse.text.grammar import spec as forms
from zse.text.grammar.masks import MaskRows, write_masks
from zse.text.grammar.spec import GrammarSpec

TOKENIZER = WordTokenizer(("<think>", "<|stray|>"))
COMPILER = compiler_for(TOKENIZER)
SIZE = TOKENIZER.vocab_size
(END_ID, THINK_ID) = TOKENIZER.controls[END], TOKENIZER.controls["<think>"]


def begin(spec):
    return COMPILER.compile(spec).begin()


def ids(text):
    return TOKENIZER.encode(text)


@pytest.mark.parametrize("whitespace", [forms.FLEXIBLE, forms.COMPACT], ids=["flexible", "compact"])
def test_every_answer_that_ends_fits_its_schema(whitespace):
    draw = random.Random(11)
    for seed in range(100):
        schema = random_schema(draw)
        answer, is_whole = walk(
            begin(forms.json_schema(schema, whitespace=whitespace)), TOKENIZER, seed=seed
        )
        assert is_whole, schema
        jsonschema.validate(json.loads(TOKENIZER.text_of(answer)), schema)


def test_a_finished_form_leaves_nothing_but_an_end():
    state = begin(forms.choice(["yes", "no"]))
    assert set(allowed_by(state, SIZE)) == {*ids("yes"), *ids("no"), *ids("y"), *ids("n")}
    state.advance(ids("yes")[0])
    assert state.is_complete
    assert allowed_by(state, SIZE) == [END_ID]


def test_an_end_comes_only_where_the_form_may_end():
    state = begin(forms.regex("a+"))
    assert END_ID not in allowed_by(state, SIZE)
    state.advance(ids("a")[0])
    assert END_ID in allowed_by(state, SIZE)
    assert not state.is_complete


def test_what_is_banned_does_not_come_unless_nothing_else_may():
    state = begin(forms.regex("a{2}"))
    state.advance(ids("a")[0])
    assert allowed_by(state, SIZE, ids("a")) == ids("a")
    state = begin(forms.regex("a+|b"))
    assert allowed_by(state, SIZE, ids("a")) == ids("b")


def test_a_token_that_does_not_fit_ends_the_state():
    state = begin(forms.regex("a+"))
    state.advance(ids("b")[0])
    assert state.error
    assert not state.is_complete
    state.advance(ids("a")[0])
    assert len(allowed_by(state, SIZE)) == SIZE  # nobody reads it any more
    assert state.forced_tokens() == ()


def test_masks_of_drafts_are_those_of_the_answers_that_they_make():
    state = begin(forms.regex("ab?c"))
    drafts = [*ids("a"), *ids("c"), *ids("x")]
    row_bytes = 4 * -(-SIZE // 32)
    memory = (ctypes.c_uint32 * (4 * row_bytes // 4))()
    banned = [(), ids("b"), (), ()]
    write_masks([MaskRows(state, banned, drafts)], ctypes.addressof(memory), row_bytes)
    words = row_bytes // 4
    rows = [
        {t for t in range(SIZE) if memory[row * words + t // 32] >> t % 32 & 1} for row in range(4)
    ]
    assert rows[:3] == [set(ids("a")), set(ids("c")), {END_ID}]
    assert rows[3] == set(range(SIZE))  # behind a draft that cannot stand
    assert allowed_by(state, SIZE) == ids("a")  # and the state is where it was


def test_many_answers_and_rows_without_a_form_are_written_together():
    states = [begin(forms.choice([text])) for text in "abcdefgh"]
    row_bytes = 4 * -(-SIZE // 32)
    words = row_bytes // 4
    memory = (ctypes.c_uint32 * (10 * words))()
    wanted = [MaskRows(state, [()]) for state in states]
    write_masks([2, *wanted], ctypes.addressof(memory), row_bytes)
    for row in range(10):
        found = [t for t in range(SIZE) if memory[row * words + t // 32] >> t % 32 & 1]
        assert found == (list(range(SIZE)) if row < 2 else ids("abcdefgh"[row - 2]))


def test_a_form_that_became_too_much_for_one_answer_is_there_for_the_next():
    spec = forms.regex("(a|b)*a(a|b){18}c")
    state, draw = begin(spec), random.Random(1)
    while not state.error:
        state.advance(ids(draw.choice("ab"))[0])
    assert "lexer" in state.error
    state = begin(spec)
    assert set(allowed_by(state, SIZE)) == {*ids("a"), *ids("b")}
    state.advance(ids("a")[0])
    assert not state.error


def test_tokens_that_leave_no_choice_are_known():
    schema = {"type": "object", "properties": {"name": {"type": "null"}}, "required": ["name"]}
    schema["additionalProperties"] = False
    state = begin(forms.json_schema(schema, whitespace=forms.COMPACT))
    forced = list(state.forced_tokens())
    assert TOKENIZER.text_of(forced) == '{"name": null}'
    for token in forced:
        state.advance(token)
    assert state.is_complete
    assert state.forced_tokens() == ()


AFTER = GrammarSpec(kind="lark", source='start: "yes"', starts_after=("</think>", "</thought>"))


def test_a_form_begins_behind_the_thoughts_of_an_answer():
    state = begin(AFTER)
    for token in ids("no ab</thin 12</"):
        assert set(allowed_by(state, SIZE)) == set(range(SIZE)) - {END_ID}
        state.advance(token)
        assert state.forced_tokens() == ()
    for token in ids("thought>"):
        state.advance(token)
    assert state.is_active
    assert allowed_by(state, SIZE) == ids("yes")


def test_what_follows_the_thoughts_in_one_token_belongs_to_the_form():
    words = WordTokenizer(words=("</think>y", "</think>\n\n", "es"))
    compiler = compiler_for(words)
    state = compiler.compile(AFTER).begin()
    state.advance(words.encode("</think>y")[0])
    assert allowed_by(state, words.vocab_size) == words.encode("es")
    state = compiler.compile(AFTER).begin()
    state.advance(words.encode("</think>\n\n")[0])
    assert allowed_by(state, words.vocab_size) == words.encode("y")


def test_thoughts_may_be_left_out_where_the_prompt_has_not_begun_them():
    spec = replace(AFTER, may_open=("<think>", "several tokens"))
    state = begin(spec)
    assert set(allowed_by(state, SIZE)) == {*ids("yes"), THINK_ID}
    assert state.forced_tokens() == ()
    state.advance(THINK_ID)
    assert not state.is_active
    for token in ids("ab</think>"):
        state.advance(token)
    assert allowed_by(state, SIZE) == ids("yes")
    state = begin(spec)
    state.advance(ids("y")[0])
    assert THINK_ID not in allowed_by(state, SIZE)  # it is too late
