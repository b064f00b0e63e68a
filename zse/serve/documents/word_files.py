"""DOCX as blocks: the paragraphs, headings and tables of an Office Open XML text (ECMA-376).

The file is a zip archive of XML of unknown origin: what one part unpacks to is bounded while it is
unpacked, and a document type, which entities need, is refused. Pages are known only where the
program that wrote the file left marks of where they ended.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from xml.parsers import expat

from zse.errors import RefusedError
from zse.serve.documents.blocks import Block, Headings

MAX_PART_BYTES = 64 << 20
_PART = "word/document.xml"
_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PIECE_BYTES = 1 << 20


def docx_blocks(data: bytes) -> list[Block]:
    """Return the blocks of a file.

    Raises:
        RefusedError: It is no DOCX, is damaged, unpacks to too much, or has a document type.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive, archive.open(_PART) as part:
            reader = _Reader()
            num_bytes = 0
            while piece := part.read(_PIECE_BYTES):
                num_bytes += len(piece)
                if num_bytes > MAX_PART_BYTES:
                    raise RefusedError(f"the text unpacks to more than {MAX_PART_BYTES >> 20} MiB")
                reader.feed(piece)
            return reader.finish()
    except KeyError:
        raise RefusedError(f"this archive is no DOCX: it has no {_PART}") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise RefusedError(f"this is no DOCX: {error}") from None
    except expat.ExpatError as error:
        raise RefusedError(f"the text of this DOCX is no XML: {error}") from None


class _Reader:
    """Follows the elements of the text; a tree is never built."""

    def __init__(self) -> None:
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = _refuse_doctype
        self._blocks: list[Block] = []
        self._headings = Headings()
        self._paragraph: list[str] = []
        self._row: list[str] = []
        self._rows: list[str] = []
        self._num_tables = 0
        self._level = 0
        self._page, self._has_pages = 1, False
        self._is_text = False

    def feed(self, data: bytes) -> None:
        self._parser.Parse(data, False)

    def finish(self) -> list[Block]:
        self._parser.Parse(b"", True)
        if self._has_pages:
            return self._blocks
        return [Block(text=one.text, heading=one.heading) for one in self._blocks]

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        space, _, tag = name.rpartition(" ")
        if space != _W:
            return
        value = attributes.get(f"{_W} val", "")
        if tag == "t":
            self._is_text = True
        elif tag == "p":
            self._level = 0
        elif tag in {"tab", "br", "cr"}:
            self._paragraph.append("\t" if tag == "tab" else "\n")
            self._turn_page(attributes.get(f"{_W} type") == "page")
        elif tag == "lastRenderedPageBreak":
            self._turn_page(True)
        elif tag == "pStyle":
            self._level = _level_of(value)
        elif tag == "tbl":
            self._num_tables += 1

    def _end(self, name: str) -> None:
        space, _, tag = name.rpartition(" ")
        if space != _W:
            return
        if tag == "t":
            self._is_text = False
        elif tag == "p":
            self._end_paragraph()
        elif tag == "tr":
            self._rows.append(" | ".join(self._row))
            self._row = []
        elif tag == "tbl":
            self._num_tables -= 1
            if not self._num_tables:
                self._add("\n".join(self._rows))
                self._rows = []

    def _text(self, data: str) -> None:
        if self._is_text:
            self._paragraph.append(data)

    def _turn_page(self, turns: bool) -> None:
        if turns:
            self._page += 1
            self._has_pages = True

    def _end_paragraph(self) -> None:
        text = "".join(self._paragraph).strip()
        self._paragraph = []
        if not text:
            return
        if self._num_tables:
            self._row.append(text)
        elif self._level:
            self._headings.enter(self._level, text)
        else:
            self._add(text)

    def _add(self, text: str) -> None:
        if text.strip():
            self._blocks.append(Block(text=text, page=self._page, heading=self._headings.path))


def _level_of(style: str) -> int:
    """Return the level of a paragraph's style: 0 where it is no heading."""
    word = style.lower().replace(" ", "")
    if word == "title":
        return 1
    digits = word.removeprefix("heading")
    return int(digits) if digits != word and digits in set("123456789") else 0


def _refuse_doctype(*_: object) -> None:
    raise RefusedError("the text of this DOCX has a document type, which none needs")
