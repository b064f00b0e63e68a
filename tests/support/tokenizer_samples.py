"""Tokenizers of the usual kinds, trained here on a little text, and lines to try them on."""

from __future__ import annotations

import json
import random

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = [
    "the",
    "a",
    "of",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "with",
    "as",
    "his",
    "they",
    "at",
    "be",
    "this",
    "have",
    "from",
    "or",
    "one",
    "had",
    "by",
    "word",
    "but",
    "not",
    "what",
    "all",
    "were",
    "we",
    "when",
    "your",
    "can",
    "said",
    "there",
    "use",
    "an",
    "each",
    "which",
    "she",
    "do",
    "how",
    "their",
    "if",
    "will",
    "up",
    "other",
    "about",
    "out",
    "many",
    "then",
    "them",
    "these",
    "so",
    "some",
    "her",
    "would",
    "make",
    "like",
    "him",
    "into",
    "time",
    "has",
    "look",
    "two",
    "more",
    "write",
    "go",
    "see",
    "number",
    "no",
    "way",
    "could",
    "people",
    "my",
    "than",
    "first",
    "water",
    "been",
    "call",
    "who",
    "oil",
]
CODE = (
    "def {0}({1}):\n    return {1}[{2}] + 0x{2:x}  # {0}",
    "for (int {0} = 0; {0} < {2}; ++{0}) {{ {1}[{0}] &= ~{2}; }}",
    'if {0} == "{1}" and not {0}.{1}():\n\tprint(f"{{{0}}}")',
    "SELECT {0}, {1} FROM t WHERE id >= {2};",
    '{{"{0}": [{2}, null, true], "{1}": "\\u00e9"}}',
)
SCRIPTS = (
    "日本語のテキストを書く。東京は大きい",
    "中文字符，分词测试！北京欢迎你",
    "한국어 텍스트 예시 안녕하세요",
    "Привет, как дела? Ёлка",
    "שלום עולם مرحبا بالعالم",
    "हिन्दी में लिखा हुआ ภาษาไทย",
    "naïve café Ångström œuvre ß ẞ ﬁ",
)
EMOJI = ("🙂", "👍🏽", "👩‍👩‍👧‍👦", "🇫🇷", "❤️", "🤖", "e\u0301")
SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2009", "")
CONTROLS = (
    "\x00",
    "\x01",
    "\x07",
    "\x1b[0m",
    "\x7f",
    "\x85",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u2028",
)


def mixed_lines(count: int, specials: tuple[str, ...], seed: int = 11) -> list[str]:
    """Lines of prose, code, many scripts, emoji, control characters and special tokens."""
    rng = random.Random(seed)

    def piece() -> str:
        kind = rng.random()
        if kind < 0.35:
            words = rng.choices(WORDS, k=rng.randint(1, 8))
            return rng.choice((" ".join(words), " ".join(words).title() + rng.choice(".,;!?'")))
        if kind < 0.5:
            return rng.choice(CODE).format(*rng.sample(WORDS, 2), rng.randint(0, 99999))
        if kind < 0.65:
            text = rng.choice(SCRIPTS)
            start = rng.randrange(len(text))
            return text[start : start + rng.randint(1, 12)]
        if kind < 0.75:
            return rng.choice(EMOJI) * rng.randint(1, 3)
        if kind < 0.82:
            return str(rng.choice((rng.randint(0, 10**9), rng.random(), "3,141.59", "1e-9", "½²")))
        if kind < 0.88:
            return rng.choice(CONTROLS)
        if kind < 0.94 and specials:
            return rng.choice(specials)
        return "".join(
            chr(rng.choice((rng.randint(32, 126), rng.randint(161, 1500)))) for _ in "abc"
        )

    return [
        "".join(piece() + rng.choice(SPACES) for _ in range(rng.randint(1, 6)))
        for _ in range(count)
    ]


TRAINING = mixed_lines(1200, ()) + [" ".join(WORDS)] * 20


def byte_level_tokenizer() -> Tokenizer:
    """As Qwen, Llama 3 and GPT-2: BPE over bytes."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def sentencepiece_bpe_tokenizer() -> Tokenizer:
    """As Llama 2 and Mistral: BPE over ▁-marked text with byte fallback, bos in front."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        limit_alphabet=120,
        max_token_length=10,
        special_tokens=["<unk>", "<s>", "</s>", *byte_tokens],
        show_progress=False,
    )
    # Without a pre-tokenizer a line is one word: short lines keep training quick.
    tokenizer.train_from_iterator([line[:24] for line in TRAINING], trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # bytes are ordinary tokens
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram_tokenizer() -> Tokenizer:
    """As T5 and XLM-R: a SentencePiece Unigram vocabulary without byte fallback."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    # Its alphabet must fit the vocabulary, so other scripts stay unknown to it.
    ascii_lines = [line.encode("ascii", "ignore").decode() for line in TRAINING]
    tokenizer.train_from_iterator([*ascii_lines, *SCRIPTS[3:4]], trainer)
    return tokenizer


def unigram_with_bytes_tokenizer() -> Tokenizer:
    """A Unigram vocabulary with byte fallback, which kitoken does not take."""
    document = json.loads(unigram_tokenizer().to_str())
    document["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    document["model"]["byte_fallback"] = True
    document["decoder"] = json.loads(sentencepiece_bpe_tokenizer().to_str())["decoder"]
    return Tokenizer.from_str(json.dumps(document))


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=900, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    """As BERT without its normalizer and clean-up: greedy pieces, ## inside words."""
    tokenizer = _wordpiece()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def bert_tokenizer() -> Tokenizer:
    """As BERT: kitoken drops characters here that the reference keeps as unknown."""
    tokenizer = _wordpiece()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


MAKERS = {
    "byte_level": byte_level_tokenizer,
    "sentencepiece_bpe": sentencepiece_bpe_tokenizer,
    "unigram": unigram_tokenizer,
    "unigram_with_bytes": unigram_with_bytes_tokenizer,
    "wordpiece": wordpiece_tokenizer,
    "bert": bert_tokenizer,
}
