"""Words of texts and of questions, as SQLite's full-text index takes them."""

from __future__ import annotations

import re

MAX_QUERY_WORDS = 48
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f])")
"""Letters of scripts that put no space between words: each is taken as a word."""
_COMMON = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "does",
        "for",
        "from",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
        "so",
        "that",
        "the",
        "their",
        "there",
        "these",
        "this",
        "to",
        "was",
        "we",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)


def indexed(text: str) -> str:
    """Return a text as it is put into the index."""
    return _UNSPACED.sub(r" \1 ", text)


def full_text_query(question: str) -> str:
    """Return what matches texts with any of a question's words; empty where it has none.

    Nothing that a user writes is syntax of the query: each word stands in quotes.
    """
    words = list(dict.fromkeys(_WORD.findall(indexed(question.lower()))))
    telling = [word for word in words if word not in _COMMON] or words
    return " OR ".join(f'"{word}"' for word in telling[:MAX_QUERY_WORDS])
