"""Build a tokenizer's binary form, and keep it only if it behaves as the reference does."""

from __future__ import annotations

from zse.text.engines import KitokenEngine, ReferenceEngine
from zse.text.facts import pack
from zse.text.kitoken_module import import_kitoken
from zse.text.tokenizer import Tokenizer

_PROSE = (
    "The quick brown fox jumps over the lazy dog. I do not know; don't you? It's 3.14, isn't it?",
    "  leading, trailing and   inner    spaces   ",
    "tabs\tand\nnewlines\r\n\r\nand\u00a0no-break\u3000ideographic\u2009thin spaces",
    "Ünïcödé çédille, ﬁligature, ℌ fraktur, Ω ohm, e\u0301 combined, ÅÅ\u212b, ß, İi ıI",
    "日本語のテキスト、中文字符，한국어 텍스트 ภาษาไทย עברית العربية हिन्दी",
    "emoji 🙂👩‍👩‍👧‍👦🇫🇷👍🏽 mixed🙂with text, math ∑∫√ and arrows →",
    "def f(x: int) -> int:\n    return x ** 2  # comment\n\n\tif (a&&b) { c[i]++; } /* ok */",
    "1234567890 12 345 6,789.01 0x1F 1e-9 ½ ² Ⅷ ٣",
    "control \x00\x01\x1b[0m\x7f\x85 chars \u200b\u200d\ufeff\u2028 end",
    "https://example.com/a?b=c&d=%20#e user@example.org C:\\path\\to",
    "ALLCAPS CamelCase snake_case kebab-case ... !!! ??? --- ___ ~~~",
    "▁metaspace ##piece <0x41> <unk> Ġbyte \ufffd replacement ￿ \U0010ffff",
    "",
    " ",
    "\n",
    "a",
)


def build_binary(tokenizer_json: bytes) -> bytes | None:
    """Return the bytes of the ``tokenizer.kitoken`` section, or None where kitoken differs.

    The candidate must encode and decode a built-in mixed text (prose, code, many scripts, emoji,
    control characters, and every added token between and inside words) exactly as the reference.
    Left out is the literal text of the unknown token (``<unk>``): kitoken joins neighbours of it.

    Args:
        tokenizer_json: A Hugging Face tokenizer.json.

    Raises:
        FormatError: The reference library cannot load ``tokenizer_json``.
    """
    reference = ReferenceEngine(tokenizer_json)
    facts = reference.facts
    if reference.model_type == "Unigram":
        # Equally likely splits ("66"+"6", "6"+"66") are decided by rounding, and not alike.
        return None
    try:
        definition = import_kitoken().Kitoken.from_tokenizers(tokenizer_json)
        payload = bytes(definition.to_bytes())
        candidate = KitokenEngine(payload, facts)
    except ValueError:
        return None
    fast, slow = Tokenizer(candidate, facts), Tokenizer(reference, facts)
    unknown = reference.unknown_text
    lines = probe_lines([token.text for token in facts.added if token.text != unknown])
    return pack(facts, payload) if all(_agree(fast, slow, line) for line in lines) else None


def probe_lines(added_texts: list[str]) -> list[str]:
    """Return the mixed text: lines alone, glued to added tokens, and one after another."""
    # A tokenizer may have thousands of reserved tokens: the first and last hundred stand for all.
    sample = added_texts[:100] + added_texts[100:][-100:]
    glued = [
        form.format(token)
        for token in sample
        for form in ("{0}", "a{0}b", "word {0} word", "\n{0}\n", "{0}{0}", " {0} ")
    ]
    marked = [f"{line}{token} {line}" for line, token in zip(_PROSE, sample, strict=False)]
    return [*_PROSE, *glued, *marked, "\n".join(_PROSE), "".join(_PROSE)]


def _agree(fast: Tokenizer, slow: Tokenizer, line: str) -> bool:
    """Whether both give the same ids, and the same text and bytes back."""
    try:
        ids = fast.encode(line, add_special_tokens=False)
    except ValueError:
        return False
    wanted = slow.encode(line, add_special_tokens=False)
    if ids != wanted:
        return False
    texts = {slow.engine.decode(wanted)}
    texts |= {tokenizer.decode(ids, skip_special_tokens=False) for tokenizer in (fast, slow)}
    return len(texts) == 1
