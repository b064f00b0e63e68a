"""Which kinds of documents there are, and how each is read."""

from __future__ import annotations

from typing import Literal, get_args

from zse.errors import RefusedError
from zse.serve.documents.blocks import (
    MAX_TEXT_CHARACTERS,
    Block,
    markdown_blocks,
    plain_blocks,
)

Kind = Literal["text", "markdown", "html", "pdf", "docx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PARSED_APART: frozenset[Kind] = frozenset({"html", "pdf", "docx"})
"""Kinds that take more than cutting at lines: a child process reads them."""
_SUFFIXES: dict[str, Kind] = {
    "txt": "text",
    "text": "text",
    "log": "text",
    "md": "markdown",
    "markdown": "markdown",
    "htm": "html",
    "html": "html",
    "pdf": "pdf",
    "docx": "docx",
}


def kind_of(name: str, data: bytes) -> Kind:
    """Return what a file is: as its name says, where its first bytes do not say otherwise.

    Raises:
        RefusedError: It is nothing that is read here.
    """
    suffix = name.rpartition(".")[2].lower() if "." in name else "txt"
    kind = _SUFFIXES.get(suffix)
    if kind is None:
        raise RefusedError(
            f"'{name[-80:]}' is none of the kinds that are read: {', '.join(_SUFFIXES)}",
            hint="Save it as one of these.",
        )
    found = _by_bytes(data)
    if found != kind and (found is not None or kind in {"pdf", "docx"}):
        says = found or "something else"
        raise RefusedError(f"'{name[-80:]}' is called {kind}, but its bytes are of {says}")
    return kind


def _by_bytes(data: bytes) -> Kind | None:
    if b"%PDF-" in data[:1024]:
        return "pdf"
    return "docx" if data[:4] == b"PK\x03\x04" else None


def parse(kind: Kind, data: bytes) -> list[Block]:
    """Read a document.

    Raises:
        RefusedError: It is damaged, not of its kind, holds no text or too much.
        MissingDependencyError: What reads this kind is not installed.
    """
    blocks = _read(kind, data)
    num_characters = sum(len(block.text) for block in blocks)
    if num_characters > MAX_TEXT_CHARACTERS:
        raise RefusedError(
            f"a document may have {MAX_TEXT_CHARACTERS:,} characters of text, and this has more",
            hint="Divide it.",
        )
    if not num_characters:
        raise RefusedError("no text was found in this document", hint="Pictures are not read.")
    return blocks


def _read(kind: Kind, data: bytes) -> list[Block]:
    if kind == "pdf":
        from zse.serve.documents.pdf_files import pdf_blocks

        return pdf_blocks(data)
    if kind == "docx":
        from zse.serve.documents.word_files import docx_blocks

        return docx_blocks(data)
    text = decoded(data)
    if kind == "html":
        from zse.serve.documents.web_pages import html_blocks

        return html_blocks(text)
    return markdown_blocks(text) if kind == "markdown" else plain_blocks(text)


def decoded(data: bytes) -> str:
    """Return the text of a file: UTF-8, UTF-16 with its mark, else as Windows wrote it.

    Raises:
        RefusedError: It is no text.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if b"\x00" in data:
        raise RefusedError("this is no text: it holds bytes of zero")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")
