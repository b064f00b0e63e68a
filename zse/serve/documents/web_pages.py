"""HTML as blocks: what a reader sees, without scripts, styles and navigation."""

from __future__ import annotations

from html.parser import HTMLParser

from zse.serve.documents.blocks import Block, Headings

_UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "nav", "head", "iframe"})
_TITLES = {f"h{level}": level for level in range(1, 7)}
_ENDS_BLOCK = frozenset(
    [
        "p",
        "div",
        "section",
        "article",
        "aside",
        "header",
        "footer",
        "main",
        "ul",
        "ol",
        "dl",
        "table",
        "pre",
        "blockquote",
        "figure",
        "form",
        "hr",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "body",
    ]
)
_ENDS_LINE = frozenset({"br", "li", "tr", "dt", "dd", "option"})
_CELLS = frozenset({"td", "th"})


def html_blocks(text: str) -> list[Block]:
    """Return the blocks of a page."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader.end_block()
    return reader.blocks


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._headings = Headings()
        self._pieces: list[str] = []
        self._unseen = ""
        self._depth = 0
        self._num_preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if self._unseen:
            self._depth += tag == self._unseen
        elif tag in _UNSEEN:
            self._unseen, self._depth = tag, 1
        else:
            self._boundary(tag)
            if tag in _CELLS:
                self._pieces.append(" | ")
            self._num_preformatted += tag == "pre"
            if tag == "li":
                self._pieces.append("- ")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            self._depth -= tag == self._unseen
            if not self._depth or tag in {"body", "html"}:
                self._unseen = ""
            return
        if tag in _TITLES and (title := "".join(self._pieces).strip()):
            self._headings.enter(_TITLES[tag], title)
            self._pieces.clear()
        self._boundary(tag)
        if tag == "pre" and self._num_preformatted:
            self._num_preformatted -= 1

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self._pieces.append(data if self._num_preformatted else _flat(data))

    def _boundary(self, tag: str) -> None:
        if tag in _ENDS_BLOCK:
            self.end_block()
        elif tag in _ENDS_LINE:
            self._pieces.append("\n")

    def end_block(self) -> None:
        lines = "".join(self._pieces).splitlines()
        self._pieces.clear()
        text = "\n".join(line.strip(" |") if "|" in line else line.rstrip() for line in lines)
        if text.strip():
            self.blocks.append(Block(text=text.strip("\n"), heading=self._headings.path))


def _flat(data: str) -> str:
    """Return a text with each run of white space as one space, as browsers show it."""
    if not data.strip():
        return " " if data else ""
    inner = " ".join(data.split())
    return f"{' ' if data[0].isspace() else ''}{inner}{' ' if data[-1].isspace() else ''}"
