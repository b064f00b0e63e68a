"""Which tokens ask for what stands in a gap, and in which order."""

import pytest

from zse.text.facts import AddedToken, TokenizerFacts
from zse.text.fill import FILL_FORMS, fill_form_of, gap_between
from zse.text.tokenizer import Tokenizer


class Bytes:
    """One token a byte; control tokens begin at 256."""

    word_ids = frozenset()

    def encode(self, text, *, parse_special):
        assert not parse_special
        return list(text.encode())

    def token_bytes(self, token_id):
        return bytes([token_id])


def tokenizer_with(texts, prefix_ids=()):
    added = tuple(AddedToken(256 + i, text, True) for i, text in enumerate(texts))
    facts = TokenizerFacts(
        kind="byte_level", vocab_size=512, added=added, prefix_ids=tuple(prefix_ids)
    )
    return Tokenizer(Bytes(), facts)


QWEN = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"]
FAMILIES = {
    "Qwen2.5-Coder": (QWEN, [257, 65, 259, 66, 258], (260,)),
    "StarCoder2": (
        ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<file_sep>"],
        [256, 65, 258, 66, 257],
        (259,),
    ),
    "DeepSeek-Coder": (
        ["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"],
        [257, 65, 256, 66, 258],
        (),
    ),
    "Code Llama": (["▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"], [256, 65, 258, 66, 257], (259,)),
    "Codestral": (["[SUFFIX]", "[PREFIX]"], [256, 66, 257, 65], ()),
}


@pytest.mark.parametrize(("texts", "ids", "ends"), FAMILIES.values(), ids=FAMILIES)
def test_each_family_is_asked_in_its_own_order(texts, ids, ends):
    tokenizer = tokenizer_with(texts, prefix_ids=[300])
    form = fill_form_of(tokenizer)
    assert form in FILL_FORMS
    gap = gap_between(tokenizer, form, "A", "B")
    assert gap.token_ids == [300, *ids]
    assert gap.end_token_ids == ends


def test_a_tokenizer_without_all_of_a_forms_tokens_has_none():
    assert fill_form_of(tokenizer_with(QWEN[:3])) is None
    assert fill_form_of(tokenizer_with([])) is None


def test_the_texts_around_a_gap_write_no_control_token():
    tokenizer = tokenizer_with(QWEN)
    form = fill_form_of(tokenizer)
    gap = gap_between(tokenizer, form, "<|fim_suffix|>", "")
    assert gap.token_ids.count(259) == 1
