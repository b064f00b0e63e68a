"""Tokens that are text by themselves: theirs is what a detokenizer at rest makes of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import MAKERS

from zse.text import lone
from zse.text.binary import build_binary
from zse.text.detokenize import IncrementalDetokenizer
from zse.text.lone import LoneTokens
from zse.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizers(tokenizer_json):
    loaded = {}
    for kind in MAKERS:
        source = tokenizer_json(kind)
        sections = {"tokenizer.json": source, "tokenizer.kitoken": build_binary(source)}
        loaded[kind] = Tokenizer.from_sections(sections.get)
    return loaded


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_lone_tokens_between_pushes_give_the_text_of_pushes_alone(tokenizers, data):
    tokenizer = tokenizers[data.draw(st.sampled_from(sorted(MAKERS)))]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    table = LoneTokens(tokenizer)
    detokenizer, pieces = IncrementalDetokenizer(tokenizer), []
    for token_id in ids:
        text = table[token_id] if detokenizer.is_at_rest else None
        pieces.append(detokenizer.push(token_id) if text is None else json.loads(text))
    pieces.append(detokenizer.flush())
    expected = IncrementalDetokenizer(tokenizer)
    assert "".join(pieces) == "".join([*map(expected.push, ids), expected.flush()])


def test_some_tokens_of_every_kind_with_bytes_are_lone_and_control_tokens_are_not(tokenizers):
    for tokenizer in tokenizers.values():
        table = LoneTokens(tokenizer)
        has_bytes = tokenizer.facts.kind != "other"
        assert any(table[i] is not None for i in range(tokenizer.vocab_size)) == has_bytes
        assert [table[i] for i in tokenizer.special_ids] == [None] * len(tokenizer.special_ids)


def test_the_table_stays_small_whatever_is_asked_of_it(tokenizers, monkeypatch):
    monkeypatch.setattr(lone, "_MOST_KEPT", 8)
    table = LoneTokens(tokenizers["byte_level"])
    again = LoneTokens(tokenizers["byte_level"])
    for token_id in range(64):
        assert table[token_id] == again[token_id]
        assert len(table) <= 8
