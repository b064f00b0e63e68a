"""How llama.cpp's names of pre-tokenizers cut a text, as tokenizers' own files say it.

The names are those of ``tokenizer.ggml.pre`` (``llama-vocab.cpp``); each stands for the tokenizer
of a line of models, whose regular expression is what the models' makers published.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_END}"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_END}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_END_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    + _END_WITH_SLASH
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|" + _END_WITH_SLASH
)


@record
class PreTokenizer:
    """How a text is cut before its bytes are merged."""

    steps: tuple[Mapping[str, Any], ...]
    """As ``pre_tokenizer`` of a tokenizer.json says them."""
    normalizer: str | None = None
    ignores_merges: bool = False
    """A piece that is a token as it stands is not merged together."""
    adds_bos: bool = False
    """Where the file does not say."""


def byte_level(*, uses_regex: bool) -> dict[str, Any]:
    """Return the step that turns bytes into letters, cut by GPT-2's expression or not at all."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": uses_regex,
    }


def _split(pattern: str, **rest: Any) -> PreTokenizer:
    step = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return PreTokenizer(steps=(step, byte_level(uses_regex=False)), **rest)


_GPT2 = PreTokenizer(steps=(byte_level(uses_regex=True),))
_DIGITS = PreTokenizer(
    steps=({"type": "Digits", "individual_digits": True}, byte_level(uses_regex=True))
)
_ROWS: tuple[tuple[tuple[str, ...], PreTokenizer], ...] = (
    (("gpt-2", "mpt", "olmo", "jais", "phi-2", "gigachat", "roberta-bpe"), _GPT2),
    (("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    (
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"),
        _split(_QWEN2, normalizer="NFC"),
    ),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"),
        _split(_LLAMA3, ignores_merges=True, adds_bos=True),
    ),
    (("dbrx", "smaug-bpe"), _split(_LLAMA3)),
    (("tekken",), _split(_TEKKEN, ignores_merges=True, adds_bos=True)),
    (("gpt-4o", "llama4"), _split(_GPT4O)),
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: row for names, row in _ROWS for name in names}
)
