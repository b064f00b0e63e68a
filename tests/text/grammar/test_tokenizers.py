"""Forms over every kind of tokenizer: what a client reads is what the form allows."""

from __future__ import annotations

import json
import random
import re

import pytest
from grammar_walks import allowed_by

from zse.text.detokenize import IncrementalDetokenizer
from zse.text.grammar import spec as forms
from zse.text.grammar.compile import GrammarCompiler
from zse.text.grammar.spec import GrammarError
from zse.text.tokenizer import Tokenizer

KINDS = ["byte_level", "sentencepiece_bpe", "unigram_with_bytes"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tokenizer_json):
    return Tokenizer.from_sections({"tokenizer.json": tokenizer_json(request.param)}.get)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    end = max(tokenizer.special_ids)
    size = tokenizer.vocab_size
    return GrammarCompiler(tokenizer, vocab_size=size, end_token_ids=(end,))


def answer(compiler, tokenizer, spec, seed):
    """Return a random answer's text as a stream shows it, and how many tokens were forced."""
    state, draw, forced = compiler.compile(spec).begin(), random.Random(seed), 0
    prompt = tokenizer.encode("Say it:", add_special_tokens=False)
    reader, texts = IncrementalDetokenizer(tokenizer, prompt), []
    end = max(tokenizer.special_ids)
    for _ in range(300):
        tokens = list(state.forced_tokens())
        forced += len(tokens)
        if not tokens:
            tokens = [draw.choice(allowed_by(state, tokenizer.vocab_size))]
        for token in tokens:
            if token == end:
                break
            state.advance(token)
            assert not state.error, state.error
            texts.append(reader.push(token))
        if tokens[-1] == end or state.is_complete:
            return "".join(texts) + reader.flush(), forced
    raise AssertionError(f"no end: {''.join(texts)!r}")


def test_texts_are_those_of_the_form(compiler, tokenizer):
    for seed in range(10):
        text, _ = answer(compiler, tokenizer, forms.regex("(yes|no), [a-z ]{3,9}!"), seed)
        assert re.fullmatch("(yes|no), [a-z ]{3,9}!", text.removeprefix(" ")), text


def test_objects_are_read_back_and_names_are_jumped_over(compiler, tokenizer):
    schema = {
        "type": "object",
        "properties": {"shipping_address": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["shipping_address"],
        "additionalProperties": False,
    }
    spec = forms.json_schema(schema, whitespace=forms.COMPACT)
    for seed in range(5):
        text, forced = answer(compiler, tokenizer, spec, seed)
        assert 0 <= json.loads(text)["shipping_address"] <= 99
        assert forced > 2


def test_a_tokenizer_whose_tokens_have_no_bytes_of_their_own_is_refused(tokenizer_json):
    tokenizer = Tokenizer.from_sections({"tokenizer.json": tokenizer_json("bert")}.get)
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, end_token_ids=(0,))
    with pytest.raises(GrammarError, match="tokens whose bytes vary") as refusal:
        compiler.compile(forms.choice(["yes"]))
    assert refusal.value.http_status == 400


def test_a_model_without_an_end_is_refused(tokenizer):
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, end_token_ids=())
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        compiler.compile(forms.choice(["yes"]))
