"""Texts to read, cut into windows of tokens that every model reads alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.records import record
from zse.text.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.text.tokenizer import Tokenizer

SAMPLE = Path(__file__).parent / "sample"
"""A page of prose and one of code, both of this project: hardly what a model was trained on."""


@record
class Window:
    """Tokens that a model reads at once, from an empty context."""

    token_ids: list[int]
    num_given: int
    """Tokens in front that say nothing of the text (bos)."""


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Return what the files say; the built-in sample where there are none.

    Raises:
        UsageError: A file is absent, no text in UTF-8, empty, or longer than 64 MiB.
    """
    return [read_text(path) for path in paths or sorted(SAMPLE.glob("*.txt"))]


def windows_of(
    tokenizer: Tokenizer, texts: Sequence[str], *, context: int, num_tokens: int | None = None
) -> list[Window]:
    """Cut texts into windows that do not overlap.

    Args:
        tokenizer: The model's.
        texts: Each begins a window of its own.
        context: Tokens of a window, those in front counted.
        num_tokens: Tokens that are read of each text; None: all.

    Raises:
        UsageError: The texts have fewer than two tokens, or a window would hold fewer than two.
    """
    found = []
    for text in texts:
        inner = tokenizer.encode(text, add_special_tokens=False)
        given = _tokens_in_front(tokenizer.encode(text), inner)
        step = context - len(given)
        if step < 2:
            raise UsageError(f"a context of {context} tokens says nothing: give at least 3")
        kept = inner[:num_tokens]
        pieces = (kept[start : start + step] for start in range(0, len(kept), step))
        found += [
            Window(token_ids=[*given, *piece], num_given=len(given))
            for piece in pieces
            if len(given) + len(piece) >= 2
        ]
    if not found:
        raise UsageError("the texts have fewer than two tokens: nothing can be foretold")
    return found


def _tokens_in_front(outer: list[int], inner: list[int]) -> list[int]:
    """Return what a tokenizer puts before a text; what it puts behind (eos) is no part of it."""
    for length in range(len(outer) - len(inner) + 1):
        if outer[length : length + len(inner)] == inner:
            return outer[:length]
    return []
