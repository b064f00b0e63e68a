"""Files from templates: ``@{name}`` in a package data file becomes a quoted literal.

The template is plain text in the platform's language, so it can be read, linted and compared. The
file's name decides the quoting. There are no conditions or loops: a line whose value is ``OMIT``
disappears, and a list or mapping spreads over the lines that it needs.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from zse.deploy.errors import DeployError
from zse.deploy.quoting import QUOTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PLACEHOLDER = re.compile(r"@\{([a-z][a-z0-9_]*)\}")


class _Omit:
    def __repr__(self) -> str:
        return "OMIT"


OMIT: Final = _Omit()
"""A value that takes its whole line with it."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template by its path below ``templates``, as ``kubernetes/base/service.yaml``.

    Raises:
        DeployError: A placeholder has no value.
        UsageError: A value cannot be written in the file's language.
    """
    text = (files("zse.deploy") / "templates" / f"{template}.tmpl").read_text(encoding="utf-8")
    return render_text(text, values, name=template)


def render_text(text: str, values: Mapping[str, Any], *, name: str) -> str:
    """Render template text; ``name`` decides how values are quoted."""
    quote = next((quoter for end, quoter in QUOTERS.items() if name.endswith(end)), None)
    if quote is None:
        raise DeployError(f"{name}: no rule says how to quote values in this file")
    unknown = {match[1] for match in _PLACEHOLDER.finditer(text)} - values.keys()
    if unknown:
        raise DeployError(f"{name}: no value for {', '.join(sorted(unknown))}")
    lines = [_render_line(line, values, quote) for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines if line is not None)


def _render_line(
    line: str, values: Mapping[str, Any], quote: Callable[[Any, str], str]
) -> str | None:
    if any(values[match[1]] is OMIT for match in _PLACEHOLDER.finditer(line)):
        return None
    indent = line[: len(line) - len(line.lstrip())]

    def literal(match: re.Match[str]) -> str:
        return quote(values[match[1]], indent)

    first, *rest = _PLACEHOLDER.sub(literal, line).split("\n")
    # A block begins on the next line: no space stays behind its key.
    return "\n".join([first.rstrip() if rest else first, *rest])
