"""A tokenizer of whole words and their pieces (BERT's), out of the tokens of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORD_START = "\u2581"
_CONTINUES = "##"


def restored(token: str, *, is_control: bool) -> str:
    """Return a token as vocabularies of BERT have it.

    llama.cpp's converter marks what begins a word, BERT what continues one. Tokens that stand for
    no text are marked by neither.
    """
    if is_control or (token.startswith("[") and token.endswith("]")):
        return token
    if token.startswith(_WORD_START):
        return token.removeprefix(_WORD_START)
    return _CONTINUES + token


def word_pieces(ids: Mapping[str, int], unknown: str) -> dict[str, Any]:
    """Return what a tokenizer.json says of such a vocabulary.

    No setting says whether it was trained on small letters; that none has a large one does.
    """
    is_lower = all(token == token.lower() for token in ids if not token.startswith("["))
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": is_lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": _CONTINUES, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": _CONTINUES,
            "max_input_chars_per_word": 100,
            "vocab": dict(ids),
        },
    }


def around_texts(first: str, last: str, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return what is put around a text, and around each of a pair."""
    begin = {"SpecialToken": {"id": first, "type_id": 0}}
    ends = [{"SpecialToken": {"id": last, "type_id": number}} for number in (0, 1)]
    texts = [{"Sequence": {"id": letter, "type_id": n}} for n, letter in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [begin, texts[0], ends[0]],
        "pair": [begin, texts[0], ends[0], texts[1], ends[1]],
        "special_tokens": special_tokens([first, last], ids),
    }


def special_tokens(tokens: Sequence[str], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return how a tokenizer.json describes the tokens that it puts around texts."""
    return {
        token: {"id": token, "ids": [ids[token]], "tokens": [token]}
        for token in dict.fromkeys(tokens)
    }
