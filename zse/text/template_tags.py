"""The tags of a chat template, found where the engine finds them.

What bounds a template's cost reads its tags. Wherever that took a tag to end sooner, or in another
place, than the engine does, the rest of it would run unread. So brackets are counted as the engine
counts them (the ``}}`` of ``{{ {'a': {}}.a }}`` ends nothing), what a raw block holds is text, and
a tag that does not end is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from zse.errors import TemplateError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TAG_CHARACTERS = 4096
"""But for comments, which cost nothing."""
STRING = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_OPENING = re.compile(r"\{[{%#]")
_PIECE = re.compile(rf"(?P<string>{STRING})|[(\[{{)\]}}%'\"]", re.DOTALL)
_STATEMENT = re.compile(r"[-+]?\s*(\w+)")
_END_RAW = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_SIGNS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_CLOSINGS = {"{{": "}}", "{%": "%}"}


@record
class Tag:
    """A comment, a statement, something printed, or a raw block with all that is in it."""

    kind: Literal["comment", "block", "print", "raw"]
    body: str
    """What stands between its marks; of a raw block, between those of its first tag."""
    start: int
    end: int


def tags_of(source: str) -> Iterator[Tag]:
    """Yield the tags of a template in their order; what is between them is text.

    Raises:
        TemplateError: A tag is too long, or does not end.
    """
    position = 0
    while (opening := _OPENING.search(source, position)) is not None:
        tag = _tag_at(source, opening)
        position = tag.end
        yield tag


def _tag_at(source: str, opening: re.Match[str]) -> Tag:
    start, inner = opening.span()
    if opening[0] == "{#":
        end = source.find("#}", inner)
        if end < 0:
            raise _endless(source, start)
        return Tag(kind="comment", body=source[inner:end], start=start, end=end + 2)
    end = _end_of_body(source, inner, _CLOSINGS[opening[0]])
    body = source[inner:end]
    if opening[0] == "{{":
        return Tag(kind="print", body=body, start=start, end=end + 2)
    statement = _STATEMENT.match(body)
    if statement is None or statement[1] != "raw":
        return Tag(kind="block", body=body, start=start, end=end + 2)
    end_raw = _END_RAW.search(source, end + 2)
    if end_raw is None:
        raise _endless(source, start)
    return Tag(kind="raw", body=body, start=start, end=end_raw.end())


def _end_of_body(source: str, start: int, closing: str) -> int:
    """Return where a tag's closing mark stands: outside strings and all brackets."""
    depth, position = 0, start
    limit = min(len(source), start + MAX_TAG_CHARACTERS)
    while (piece := _PIECE.search(source, position, limit)) is not None:
        if depth == 0 and source.startswith(closing, piece.start()):
            return piece.start()
        depth += _SIGNS.get(piece[0], 0)
        if depth < 0 or piece[0] in "'\"":
            raise _endless(source, start - 2)
        position = piece.end()
    raise _endless(source, start - 2)


def _endless(source: str, start: int) -> TemplateError:
    return TemplateError(
        f"a tag of the chat template does not end within {MAX_TAG_CHARACTERS:,} characters, or its "
        f"brackets do not match: {source[start : start + 40]!r}",
        hint="Use /v1/completions with a prompt of your own, or change the model's template.",
    )
