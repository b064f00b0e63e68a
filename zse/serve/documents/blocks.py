"""What every kind of document is read into: blocks of text, each with its page and its headings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TEXT_CHARACTERS = 8 << 20
"""Of a document: what is behind is refused, not cut in silence."""
MAX_HEADING_CHARACTERS = 300
_HEADING_MARK = re.compile(r"#{1,6}(?=[ \t])")
_MAX_HEADING_LINE = 400
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")


@record
class Block:
    """A paragraph, a list, a table or a piece of code: what is cut only where it must be."""

    text: str
    page: int | None = None
    """Counted from 1; None where its kind of document has no pages."""
    heading: str = ""
    """The headings it stands under, the outermost first: ``Install > Linux``."""


class Headings:
    """The headings that a reader is under."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, title: str) -> None:
        """Come to a heading, which ends those of its level and below."""
        self._open = [one for one in self._open if one[0] < level]
        self._open.append((level, " ".join(title.split())))

    @property
    def path(self) -> str:
        return " > ".join(title for _, title in self._open)[:MAX_HEADING_CHARACTERS]


def plain_blocks(text: str) -> list[Block]:
    """Take plain text apart at blank lines; form feeds begin pages, as in RFCs."""
    pages = text.split("\f")
    return [
        Block(text=paragraph, page=number if len(pages) > 1 else None)
        for number, page in enumerate(pages, 1)
        for paragraph in _paragraphs(page.splitlines())
    ]


def markdown_blocks(text: str) -> list[Block]:
    """Take Markdown apart at its headings and blank lines; fenced code stays in one piece."""
    blocks: list[Block] = []
    headings, fence = Headings(), ""
    lines: list[str] = []

    def end() -> None:
        body = lines if fence else list(_paragraphs(lines))
        pieces = ["\n".join(body)] if fence else body
        blocks.extend(Block(text=one, heading=headings.path) for one in pieces if one.strip())
        lines.clear()

    for line in text.splitlines():
        opened = _FENCE.match(line)
        if fence:
            lines.append(line)
            if opened and opened[1].startswith(fence):
                end()
                fence = ""
        elif opened:
            end()
            fence = opened[1]
            lines.append(line)
        elif heading := _heading_of(line):
            end()
            headings.enter(*heading)
        else:
            lines.append(line)
    end()
    return blocks


def _heading_of(line: str) -> tuple[int, str] | None:
    """Return the level and the words of a line that is a heading.

    By hand: spaces and marks that a pattern may divide in several ways take it the cube of their
    number, and nothing else in this process would run meanwhile.
    """
    mark = _HEADING_MARK.match(line)
    title = line[mark.end() :].strip(" \t").rstrip(" \t#") if mark else ""
    if mark is None or not 0 < len(title) <= _MAX_HEADING_LINE:
        return None
    return mark.end(), title


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield runs of lines that are not blank."""
    run: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            run.append(line.rstrip())
        elif run:
            yield "\n".join(run)
            run = []
