"""From blocks to chunks: as much as an embedder reads and a prompt can spare, with some overlap.

A chunk keeps whole blocks together under one heading and on one page, so a citation names one
place. What is longer than a chunk is cut at the end of a sentence, else between words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zse.serve.documents.blocks import Block

CHUNK_CHARACTERS = 1000
"""About 250 tokens of English: what small embedders read at once."""
OVERLAP_CHARACTERS = 150
_NO_SPACE = re.compile(r"\S")
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]*\s|[。！？]|\n")


@record
class Chunk:
    """A piece of a document that is found, and cited, as one."""

    text: str
    page: int | None
    heading: str


def chunks_of(
    blocks: Iterable[Block],
    *,
    size_characters: int = CHUNK_CHARACTERS,
    overlap_characters: int = OVERLAP_CHARACTERS,
) -> Iterator[Chunk]:
    """Yield the chunks of a document.

    Args:
        blocks: In the order of the document.
        size_characters: The longest chunk.
        overlap_characters: Of what a chunk says again that the one before ended with; less than
            half of the longest chunk.
    """
    text, page, heading, is_fresh = "", None, "", False
    for block in blocks:
        if text and (block.page, block.heading) != (page, heading):
            if is_fresh:
                yield Chunk(text=text, page=page, heading=heading)
            text, is_fresh = "", False
        page, heading = block.page, block.heading
        for piece in _pieces(block.text, size_characters - overlap_characters):
            if text and len(text) + 2 + len(piece) > size_characters:
                if is_fresh:
                    yield Chunk(text=text, page=page, heading=heading)
                text = _tail(text, overlap_characters - 2)
            text = f"{text}\n\n{piece}" if text else piece
            is_fresh = True
    if text and is_fresh:
        yield Chunk(text=text, page=page, heading=heading)


def _pieces(text: str, most: int) -> Iterator[str]:
    """Yield a block in pieces of at most so many characters, each as long as may be."""
    text = text.strip()
    start = 0
    while len(text) - start > most:  # what is left is not copied for each piece of it
        end = _cut(text, start, most)
        yield text[start:end].rstrip()
        start = _NO_SPACE.search(text, end).start()  # type: ignore[union-attr]  # it ends in a word
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int, most: int) -> int:
    """Return where to cut: behind a sentence of the second half, else at a space, else anywhere."""
    middle, end = start + most // 2, start + most
    ends = [found.end() for found in _SENTENCE_END.finditer(text, middle, end)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", middle, end)
    return space if space > 0 else end


def _tail(text: str, most: int) -> str:
    """Return the end of a chunk that the next begins with: from a sentence, else from a word."""
    tail = text[-most:] if most > 0 else ""
    starts = [found.end() for found in _SENTENCE_END.finditer(tail)]
    whole = next((tail[at:] for at in starts if tail[at:].strip()), None)
    if whole is None:
        whole = tail.partition(" ")[2]
    return whole.strip()
