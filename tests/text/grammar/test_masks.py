"""Masks that are written side by side are those that would have been written one by one."""

from __future__ import annotations

import ctypes
import random
import threading

import pytest
from grammar_walks import WordTokenizer, allowed_by, compiler_for
from random_schemas import random_schema

from zse.text.grammar import compile as compile_module
from zse.text.grammar import masks as masks_module
from zse.text.grammar import spec as forms
from zse.text.grammar.masks import MaskRows, write_masks
from zse.text.grammar.spec import GrammarSpec

TOKENIZER = WordTokenizer(("<think>",))
SIZE = TOKENIZER.vocab_size
ROW_BYTES = 4 * -(-SIZE // 32)
LETTER = 'start: "Dear " NAME ", the city of Paris is true" " "* "yes"\nNAME: /[A-Z][a-z]{2,9}/'


@pytest.fixture(autouse=True)
def four_threads(monkeypatch):
    for function in (masks_module.mask_threads, masks_module._executor):
        function.cache_clear()
    machine = masks_module.probe()
    monkeypatch.setattr(type(machine), "compute_threads", 4)
    assert masks_module.mask_threads() == 4
    yield
    for function in (masks_module.mask_threads, masks_module._executor):
        function.cache_clear()


def written(wanted, num_rows):
    memory = (ctypes.c_uint32 * (num_rows * ROW_BYTES // 4))()
    write_masks(wanted, ctypes.addressof(memory), ROW_BYTES)
    rows = memoryview(memory).cast("B")
    return [bytes(rows[row * ROW_BYTES : (row + 1) * ROW_BYTES]) for row in range(num_rows)]


def states_of(specs, answers_each):
    compiler = compiler_for(TOKENIZER)
    return [
        compiler.compile(spec, answers_each).begin() for spec in specs for _ in range(answers_each)
    ]


def roots_of_next_answers(grammar):
    states = [grammar.begin() for _ in range(16)]
    return {state.root for state in states}


def step(states, draw):
    """Advance every answer by a token of its own; one that has ended stays as it is."""
    for state in states:
        if not state.is_complete and not state.error:
            state.advance(draw.choice(allowed_by(state, SIZE)))


def test_masks_written_side_by_side_equal_those_written_alone():
    draw = random.Random(5)
    after = GrammarSpec(kind="lark", source='start: "yes"', starts_after=("</think>",))
    specs = [*(forms.json_schema(random_schema(draw)) for _ in range(6)), after]
    states = states_of(specs, 4)
    assert len({state.root for state in states}) > len(specs)
    for _ in range(12):
        bans = [draw.choices(range(SIZE), k=draw.choice((0, 3, 60))) for _ in states]
        wanted = [MaskRows(state, [ban]) for state, ban in zip(states, bans, strict=True)]
        alone = [written([rows], 1)[0] for rows in wanted]
        draw.shuffle(order := list(range(len(states))))
        together = written([wanted[place] for place in order], len(states))
        assert together == [alone[place] for place in order]
        step(states, draw)


def test_masks_are_those_that_the_library_writes_for_a_copy():
    draw = random.Random(6)
    specs = [forms.json_schema(random_schema(draw)) for _ in range(20)]
    letters = (LETTER, f'%llguidance {{"no_forcing": true}}\n{LETTER}')
    specs += [GrammarSpec(kind="lark", source=source) for source in letters]
    states = states_of(specs, 2)
    num_forced = 0
    for _ in range(40):
        copies = [state.matcher.deep_copy() for state in states]
        wanted = [MaskRows(state, [()]) for state in states]
        rows = written(wanted, len(states))
        assert rows == [copy.compute_bitmask() for copy in copies]
        num_forced += sum(int.from_bytes(row, "little").bit_count() == 1 for row in rows)
        step(states, draw)
    assert num_forced > 100


def test_no_thread_of_the_library_asks_the_tokenizer(monkeypatch):
    asking = []
    encode = TOKENIZER.encode_within

    def noted(text, **options):
        asking.append(threading.get_ident())
        return encode(text, **options)

    monkeypatch.setattr(TOKENIZER, "encode_within", noted)
    draw = random.Random(7)
    states = states_of([forms.json_schema(random_schema(draw)) for _ in range(6)], 4)
    for _ in range(20):
        written([MaskRows(state, [()]) for state in states], len(states))
        step(states, draw)
    assert set(asking) == {threading.get_ident()}


def test_what_a_form_forces_is_cut_into_tokens_once(monkeypatch):
    asked = []
    encode = TOKENIZER.encode_within

    def noted(text, **options):
        asked.append(text)
        return encode(text, **options)

    monkeypatch.setattr(TOKENIZER, "encode_within", noted)
    states = states_of([forms.regex("(yes|no), whatever was said in the city")], 8)
    for state in states:
        state.advance(TOKENIZER.encode("yes")[0])
    written([MaskRows(state, [()]) for state in states], len(states))
    assert len(asked) == len(set(asked)) > 0


def test_a_model_may_have_more_logits_than_its_tokenizer_has_tokens():
    compiler = compiler_for(TOKENIZER, vocab_size=SIZE + 400)
    state = compiler.compile(forms.regex("[^a]*")).begin()
    allowed = allowed_by(state, SIZE + 400)
    assert len(allowed) > 150
    assert max(allowed) < SIZE


def test_answers_of_one_form_do_not_wait_for_each_other():
    states = states_of([forms.regex("[a-z]+")], 8)
    assert len({state.root for state in states}) == 8


def test_a_form_that_takes_long_to_compile_is_made_for_fewer_answers(monkeypatch):
    monkeypatch.setattr(compile_module, "_ROOTS_SECONDS", 0.0)
    states = states_of([forms.regex("[a-z]+")], 8)
    assert len({state.root for state in states}) == 1


def test_a_form_is_made_for_as_many_answers_as_run_at_once():
    compiler, spec = compiler_for(TOKENIZER), forms.regex("[a-z]+")
    for _ in range(8):
        compiler.compile(spec).begin()
    assert len(roots_of_next_answers(compiler.compile(spec))) == 1
    states = [compiler.compile(spec).begin() for _ in range(40)]
    assert len({state.root for state in states}) == 32


def test_what_is_made_for_answers_that_never_begin_is_given_up():
    compiler, spec = compiler_for(TOKENIZER), forms.regex("[a-z]+")
    grammar = compiler.compile(spec, 8)
    compiler.compile(forms.regex("[0-9]"))
    assert len(roots_of_next_answers(grammar)) == 8
    compiler.compile(forms.regex("[A-Z]"))
    assert len(roots_of_next_answers(grammar)) == 1


def test_what_was_made_for_many_answers_is_given_up_once_they_have_ended():
    compiler, spec = compiler_for(TOKENIZER), forms.regex("[a-z]+")
    grammar = compiler.compile(spec, 8)
    states = [grammar.begin() for _ in range(8)]
    compiler.compile(forms.regex("[0-9]"))
    assert roots_of_next_answers(grammar) == {state.root for state in states}
    last = states[-1].root
    del states[:-1]
    compiler.compile(forms.regex("[A-Z]"))
    left = roots_of_next_answers(grammar)
    assert last in left
    assert len(left) == 2  # its own, and the first


def test_an_answer_that_fails_in_a_batch_fails_alone():
    heavy = forms.regex("(a|b)*a(a|b){18}c")
    states = states_of([heavy], 4)
    failing, others = states[0], states[1:]
    assert all(state.root is not failing.root for state in others)
    draw, before = random.Random(1), written([MaskRows(other, [()]) for other in others], 3)
    while not failing.error:
        written([MaskRows(state, [()]) for state in states], 4)
        failing.advance(TOKENIZER.encode(draw.choice("ab"))[0])
    rows = written([MaskRows(state, [()]) for state in states], 4)
    assert rows[1:] == before
    assert set(rows[0]) == {0xFF}  # nobody reads it any more
    step(others, draw)
    assert not any(state.error for state in others)


def test_a_ban_that_would_leave_nothing_leaves_what_the_form_allows():
    state = states_of([forms.regex("a|b")], 1)[0]
    both = [*TOKENIZER.encode("a"), *TOKENIZER.encode("b")]
    assert allowed_by(state, SIZE, both) == sorted(both)
    assert allowed_by(state, SIZE, [*both[:1], *both[:1]]) == both[1:]
    assert allowed_by(state, SIZE, range(SIZE)) == sorted(both)
