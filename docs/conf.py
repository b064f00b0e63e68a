"""How the site is made of these pages: ``scripts/docs``, offline, with a search of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from zse import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "zse"
author = "the zse contributors"
copyright = author  # noqa: A001 - Sphinx's name
version = release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"zse {version}"
html_show_sourcelink = False
html_copy_source = False


def keep_the_words(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to files of the repository into their words: the site holds only these pages."""
    folder = Path(app.env.doc2path(page)).parent

    def words(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        is_elsewhere = target.exists() and not target.is_relative_to(app.srcdir)
        return link["words"] if is_elsewhere else link[0]

    source[0] = re.sub(r"\[(?P<words>[^]]+)]\((?P<target>[^)#:]+)[^)]*\)", words, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", keep_the_words)
