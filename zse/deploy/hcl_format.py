"""Equals signs of HCL lined up as ``terraform fmt`` does, so that a repository's check passes."""

from __future__ import annotations

import re
from itertools import groupby

# A name or a quoted key, and a value that ends on its line.
_ATTRIBUTE = re.compile(r'( *)([A-Za-z_]\w*|"(?:[^"\\]|\\.)*") = (.*[^\[{(])')


def align_attributes(text: str) -> str:
    """Line up the equals signs of neighbouring attributes that stand on one line each."""
    lines: list[str] = []
    for indent, run in groupby(text.splitlines(), key=_indent_of_attribute):
        if indent is None:
            lines += run
            continue
        parts = [match for match in map(_ATTRIBUTE.fullmatch, run) if match]
        width = max(len(match[2]) for match in parts)
        lines += [f"{match[1]}{match[2]:<{width}} = {match[3]}" for match in parts]
    return "\n".join(lines) + "\n"


def _indent_of_attribute(line: str) -> str | None:
    match = _ATTRIBUTE.fullmatch(line)
    return match[1] if match else None
