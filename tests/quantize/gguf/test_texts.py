"""A tokenizer that was taken apart into a GGUF file's settings encodes as it did before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gguf_files import tokenizer_settings
from tokenizer_samples import mixed_lines
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.gguf.pre_tokenizers import PRE_TOKENIZERS
from zse.quantize.gguf.texts import texts_of

LINES = mixed_lines(200, ("<|end|>",))


def rebuilt(settings: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(texts_of(settings, "m.gguf")["tokenizer.json"].decode())


def byte_level(pre: str) -> Tokenizer:
    row = PRE_TOKENIZERS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=row.ignores_merges))
    document = json.loads(tokenizer.to_str())
    steps = list(row.steps)
    document["pre_tokenizer"] = (
        steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    )
    document["normalizer"] = {"type": row.normalizer} if row.normalizer else None
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [*"abcdefghijklmnopqrstuvwxyz"]
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o"])
def test_bytes_are_merged_as_before(pre: str) -> None:
    tokenizer = byte_level(pre)
    found = rebuilt(tokenizer_settings(json.loads(tokenizer.to_str()), pre))
    assert [found.encode(line).ids for line in LINES] == [
        tokenizer.encode(line).ids for line in LINES
    ]
    ids = tokenizer.encode("A line of text, 12 34.").ids
    assert found.decode(ids) == tokenizer.decode(ids)


def by_scores() -> dict[str, Any]:
    """The settings of a SentencePiece tokenizer: letters, words that are made of them, bytes."""
    pieces = [
        "\u2581",
        *"abcdehlort",
        "he",
        "ll",
        "hell",
        "\u2581hell",
        "hello",
        "or",
        "wor",
        "ld",
        "world",
    ]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *pieces,
        "w",
        "<|x|>",
    ]
    kinds = [2, 3, 3, *([6] * 256), *([1] * (len(pieces) + 1)), 4]
    scores = [0.0] * 259 + [-float(index) for index in range(len(pieces) + 1)] + [0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_the_pair_with_the_best_score_is_merged_first() -> None:
    tokenizer = rebuilt(by_scores())
    assert tokenizer.encode("hello world").tokens == ["<s>", "\u2581hell", "o", "\u2581", "world"]
    assert tokenizer.encode("\u00fc", add_special_tokens=False).tokens == [
        "\u2581", "<0xC3>", "<0xBC>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("hello w\u00fcrld").ids) == "hello w\u00fcrld"


def of_gemma() -> Tokenizer:
    """A tokenizer that is cut as Gemma's: merges of letters, spaces among them, bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *map("<0x{:02X}>".format, range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([line[:60] for line in LINES], trainer)
    return tokenizer


def test_letters_are_merged_in_the_order_of_a_list() -> None:
    tokenizer = of_gemma()
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    found = rebuilt(
        {
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, 3, 2] + [6] * 256 + [1] * (len(tokens) - 260),
            "tokenizer.ggml.scores": [-1000.0] * len(tokens),
            "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
            "tokenizer.ggml.bos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 3,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    assert found.encode("").ids == [2]
    for line in LINES:
        ids = found.encode(line, add_special_tokens=False).ids
        if "<|end|>" not in line:
            assert ids == tokenizer.encode(line, add_special_tokens=False).ids
            assert found.decode(ids) == line.replace("\u2581", " ")


def test_tokens_of_users_are_found_in_texts_and_kept_in_answers() -> None:
    tokenizer = rebuilt(by_scores() | {"tokenizer.ggml.add_bos_token": False})
    ids = tokenizer.encode("he<|x|>").ids
    assert tokenizer.id_to_token(ids[-1]) == "<|x|>"
    assert tokenizer.decode(ids).endswith("<|x|>")


def test_runs_of_spaces_are_tokens_like_others() -> None:
    settings = by_scores()
    settings["tokenizer.ggml.tokens"].append("   ")
    settings["tokenizer.ggml.tokens"].append("\u2581\u2581")
    settings["tokenizer.ggml.token_type"] += [4, 1]
    settings["tokenizer.ggml.scores"] += [-1.0, -2.0]
    tokenizer = rebuilt(settings)
    assert tokenizer.encode("he   he", add_special_tokens=False).tokens == [
        "\u2581", "he", "\u2581\u2581\u2581", "he",
    ]  # fmt: skip


def test_no_prefix_is_put_in_front_where_the_file_says_so() -> None:
    tokenizer = rebuilt(by_scores() | {"tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["hello"]
    assert isinstance(tokenizer.normalizer, normalizers.Replace)


def test_templates_and_named_tokens_come_along() -> None:
    texts = texts_of({**by_scores(), "tokenizer.chat_template": "{{ messages }}"}, "m.gguf")
    assert texts["chat_template.jinja"] == b"{{ messages }}"
    assert json.loads(texts["tokenizer_config.json"])["eos_token"] == "</s>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, "1 values for"),
        (
            {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]},
            "written alike",
        ),
        ({"tokenizer.ggml.eos_token_id": 10_000}, "eos_token_id is 10000"),
        ({"tokenizer.ggml.add_bos_token": 3}, "add_bos_token is"),
        ({"tokenizer.ggml.token_type": None}, "no list of int"),
    ],
)
def test_a_damaged_tokenizer_is_refused_by_what_is_wrong(changes: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        texts_of(by_scores() | changes, "m.gguf")


@pytest.mark.parametrize("merge", ["a", "a b c", "a nowhere", "a a"])
def test_a_merge_that_makes_no_token_is_refused(merge: str) -> None:
    tokenizer = tokenizer_settings(json.loads(byte_level("gpt-2").to_str()), "gpt-2")
    tokenizer["tokenizer.ggml.merges"].append(merge)
    with pytest.raises(CheckpointError, match="two tokens that make a third"):
        texts_of(tokenizer, "m.gguf")


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer.ggml.model": "rwkv"},
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "odd"},
    ],
)
def test_an_unknown_tokenizer_says_that_another_may_be_given(changes: dict) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        texts_of(by_scores() | changes, "m.gguf")
    assert "--tokenizer" in caught.value.hint


def pieces_of(lines: list[str], *, lowercase: bool) -> Tokenizer:
    """A tokenizer of words and pieces, as BERT has them."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        lines,
        trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def settings_of_pieces(tokenizer: Tokenizer, begin: str) -> dict[str, Any]:
    """Words marked where they begin, as llama.cpp's converter does."""
    ids = tokenizer.get_vocab()

    def phantom(token: str) -> str:
        if token.startswith("##"):
            return token[2:]
        return token if ids[token] < 5 else f"\u2581{token}"

    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [phantom(token) for token in sorted(ids, key=ids.__getitem__)],
        "tokenizer.ggml.token_type": [3 if number < 5 else 1 for number in range(len(ids))],
        "tokenizer.ggml.unknown_token_id": 1,
        f"tokenizer.ggml.{begin}_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }


@pytest.mark.parametrize(("lowercase", "begin"), [(True, "cls"), (False, "bos")])
def test_words_are_cut_into_pieces_as_before(lowercase: bool, begin: str) -> None:
    lines = [*LINES, "An unknown \u4e16\u754c, [MASK] and Words"]
    tokenizer = pieces_of(lines, lowercase=lowercase)
    found = rebuilt(settings_of_pieces(tokenizer, begin))
    for line, other in zip(lines, reversed(lines), strict=True):
        assert found.encode(line).ids == tokenizer.encode(line).ids
        ours, theirs = found.encode(line, other), tokenizer.encode(line, other)
        assert (ours.ids, ours.type_ids) == (theirs.ids, theirs.type_ids)


@pytest.mark.parametrize("missing", ["unknown", "cls", "seperator"])
def test_words_without_a_token_that_they_need_are_refused(missing: str) -> None:
    settings = settings_of_pieces(pieces_of(LINES[:5], lowercase=True), "cls")
    del settings[f"tokenizer.ggml.{missing}_token_id"]
    with pytest.raises(CheckpointError, match="it has no"):
        texts_of(settings, "m.gguf")
