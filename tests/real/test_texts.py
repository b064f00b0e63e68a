"""Tokenizers and chat templates of trained models are those of ``transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from real_texts import conversations, real_lines

from zse.format.reader import ZSEReader
from zse.text.dialect import detect_dialect
from zse.text.template import load_chat_template
from zse.text.tokenizer import load_tokenizer
from zse.text.user_text import Values, encode_pieces

if TYPE_CHECKING:
    from real_model import RealModel

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def test_ten_thousand_lines_encode_and_decode_as_in_transformers(model: RealModel) -> None:
    reference = model.tokenizer
    with ZSEReader(model.file("int8")) as reader:
        tokenizer = load_tokenizer(reader)
    specials = tuple(token.text for token in tokenizer.facts.added[:40])
    assert specials
    lines = real_lines(10_000, specials)
    assert len(lines) == 10_000
    differing = []
    for line in lines:
        wanted = reference.encode(line)
        bare = reference.encode(line, add_special_tokens=False)
        is_same = tokenizer.encode(line) == wanted
        is_same &= tokenizer.encode(line, add_special_tokens=False) == bare
        for skips in (True, False):
            text = reference.decode(
                wanted, skip_special_tokens=skips, clean_up_tokenization_spaces=False
            )
            is_same &= tokenizer.decode(wanted, skip_special_tokens=skips) == text
        if not is_same:
            differing.append(line)
    assert not differing, (len(differing), differing[:3])


def test_the_fast_form_of_the_tokenizer_is_in_the_file(model: RealModel) -> None:
    with ZSEReader(model.file("int8")) as reader:
        assert reader.has_section("tokenizer.kitoken")


def test_fifty_conversations_render_and_encode_as_in_transformers(chat_model: RealModel) -> None:
    reference = chat_model.tokenizer
    with ZSEReader(chat_model.file("int8")) as reader:
        template, tokenizer = load_chat_template(reader), load_tokenizer(reader)
    texts = detect_dialect(template.source, tokenizer.facts.added).control_texts
    given = conversations(50)
    assert sum(each["tools"] is not None for each in given) >= 15
    assert any(message.get("tool_calls") for each in given for message in each["messages"])
    for each in given:
        wanted = reference.apply_chat_template(
            each["messages"], tools=each["tools"], add_generation_prompt=True, tokenize=False
        )
        assert template.render(each["messages"], tools=each["tools"]) == wanted
        pieces = texts.rendered(
            Values(each["messages"], each["tools"], {}),
            lambda values: template.render(values.messages, tools=values.tools),
        )
        assert encode_pieces(tokenizer, pieces) == reference.encode(
            wanted, add_special_tokens=False
        )
