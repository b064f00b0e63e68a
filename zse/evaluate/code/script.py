"""What of a model's script is looked at: its definitions, as EvalPlus looks at them.

Models like to end a script with tests of their own, which may be wrong, and an answer that was cut
ends in the middle of one. Neither says anything of the function that was asked for, so statements
that define nothing are left out, and of a script that does not parse the longest beginning counts
that does.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CHARACTERS = 20_000
"""Of a script that is looked into; a longer one is run as it is."""
_MOST_TRIES = 200
_DEFINING = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign),
)


def definitions_of(script: str, name: str) -> str:
    """Return a script without what defines nothing at its outer level.

    Args:
        script: Python of a model, which may be anything.
        name: The function that was asked for: without it the script is returned as it is.
    """
    if len(script) > MOST_CHARACTERS or script.isspace():
        return script
    lines = script.replace("\r\n", "\n").split("\n")  # a parser knows no other ends of lines
    for end in _ends(lines):
        text = "\n".join(lines[:end])
        tree = _parsed(text)
        if tree is not None:
            kept = [one for one in tree.body if isinstance(one, _DEFINING)]
            return _written(text, kept) if any(_defines(one, name) for one in kept) else script
    return script


def _ends(lines: list[str]) -> list[int]:
    """Return where a script may be cut: whole, or before a line that begins at the margin."""
    starts = [index for index, line in enumerate(lines) if index and line[:1].strip()]
    return [len(lines), *starts[::-1][:_MOST_TRIES]]


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    return getattr(node, "name", None) == name


def _written(text: str, nodes: Sequence[ast.stmt]) -> str:
    """Return the source of some statements, as it stands: lines of each, decorators too."""
    lines, last = text.split("\n"), 0
    found = []
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        if first > last:  # else it stands on a line with the one before
            last = node.end_lineno or first
            found.append("\n".join(lines[first - 1 : last]) + "\n")
    return "\n".join(found)
