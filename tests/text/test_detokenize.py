"""Text that grows token by token: whole characters only, and in the end the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import MAKERS, mixed_lines

from zse.text.binary import build_binary
from zse.text.detokenize import IncrementalDetokenizer
from zse.text.tokenizer import Tokenizer

BYTE_KINDS = ("byte_level", "sentencepiece_bpe", "unigram_with_bytes")
HALF = "\ufffd"


@pytest.fixture(scope="module")
def tokenizers(tokenizer_json):
    loaded = {}
    for kind in MAKERS:
        source = tokenizer_json(kind)
        sections = {"tokenizer.json": source, "tokenizer.kitoken": build_binary(source)}
        loaded[kind] = Tokenizer.from_sections(sections.get)
    return loaded


def pieces_of(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt or [])
    return [*[detokenizer.push(token_id) for token_id in ids], detokenizer.flush()]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pushes_join_to_the_full_decode_for_any_ids(tokenizers, data):
    tokenizer = tokenizers[data.draw(st.sampled_from(BYTE_KINDS))]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_push_ever_holds_half_a_character(tokenizers, data):
    tokenizer = tokenizers[data.draw(st.sampled_from(BYTE_KINDS))]
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    text = text.replace(HALF, "")
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids)
    assert HALF not in "".join(pieces)
    assert "".join(pieces) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", BYTE_KINDS)
def test_an_emoji_split_over_tokens_comes_out_whole(tokenizers, kind):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode("🦜", add_special_tokens=False)
    assert len(ids) > 2
    pieces = pieces_of(tokenizer, ids)
    assert set(pieces) <= {"", "🦜"}
    assert pieces.count("🦜") == 1


def test_only_the_flush_shows_that_a_character_was_never_finished(tokenizers):
    tokenizer = tokenizers["byte_level"]
    ids = tokenizer.encode("🦜", add_special_tokens=False)[:-1]
    pieces = pieces_of(tokenizer, ids)
    assert pieces[:-1] == [""] * len(ids)
    assert pieces[-1] == HALF


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_every_kind_of_tokenizer_streams_real_text_as_it_decodes_it(tokenizers, kind):
    tokenizer = tokenizers[kind]
    for line in mixed_lines(150, (), seed=5):
        ids = tokenizer.encode(line, add_special_tokens=False)
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_after_a_prompt_the_pieces_are_what_the_answer_adds(tokenizers, kind):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode("the water has been there", add_special_tokens=False)
    for cut in range(1, len(ids)):
        prompt, answer = ids[:cut], ids[cut:]
        text = "".join(pieces_of(tokenizer, answer, prompt))
        assert tokenizer.decode(prompt) + text == tokenizer.decode(ids)


def test_special_tokens_are_left_out(tokenizers):
    tokenizer = tokenizers["byte_level"]
    ids = tokenizer.encode("one<|im_end|>two", add_special_tokens=False)
    assert "".join(pieces_of(tokenizer, ids)) == "onetwo"


def test_a_prompt_of_special_tokens_only_still_begins_the_text(tokenizers):
    tokenizer = tokenizers["sentencepiece_bpe"]
    ids = tokenizer.encode("one", add_special_tokens=False)
    begin = next(t.token_id for t in tokenizer.facts.added if t.text == "<s>")
    assert "".join(pieces_of(tokenizer, ids, [begin])) == "one"


@pytest.mark.parametrize("kind", MAKERS)
def test_control_tokens_have_text_only_where_they_are_shown(tokenizers, kind):
    tokenizer = tokenizers[kind]
    special = [token for token in tokenizer.facts.added if token.special][:2]
    ids = [token.token_id for token in special]
    assert "".join(pieces_of(tokenizer, ids)) == ""
    detokenizer = IncrementalDetokenizer(tokenizer, [], shown=ids[1:])
    pieces = [*map(detokenizer.push, ids), detokenizer.flush()]
    assert "".join(pieces).strip() == special[1].text
