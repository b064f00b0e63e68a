"""What a mutant is: one small change of one place of a source file, found in its syntax tree.

A mutant is a replacement of text, so a survivor can be shown, and put in by hand, as a line.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A replacement of the characters ``start`` to ``end`` of a file's text."""

    kind: str
    line_number: int
    start: int
    end: int
    replacement: str

    def apply(self, text: str) -> str:
        """Return the file's text with the change in it."""
        return text[: self.start] + self.replacement + text[self.end :]


class _Positions:
    """Where the nodes of a text lie, in characters: the tree counts bytes within a line."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line_number: int, column_bytes: int) -> int:
        line = self._lines[line_number - 1].encode()
        return self._starts[line_number - 1] + len(line[:column_bytes].decode())


def mutants_of(text: str) -> list[Mutant]:
    """Return every mutant of a Python file, in the order of the text.

    Strings, annotations and what only a type checker runs are left as they are: no test could see
    a change there, or any test would.
    """
    positions = _Positions(text)
    found: list[Mutant] = []
    for node in _reachable(ast.parse(text)):
        found.extend(_changes(node, text, positions))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.kind))


def _reachable(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the tree without annotations and ``if TYPE_CHECKING`` blocks."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _reachable(child)


def _changes(node: ast.AST, text: str, positions: _Positions) -> Iterator[Mutant]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            swapped = _COMPARISONS[type(operator)]
            yield _between(node, left, right, swapped, "comparison", text, positions)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            if not _is_text(left) and not _is_text(right):
                swapped = _ARITHMETIC[type(operator)]
                yield _between(node, left, right, swapped, "arithmetic", text, positions)
        case ast.BoolOp(op=operator, values=[left, right]):
            swapped = "or" if isinstance(operator, ast.And) else "and"
            yield _between(node, left, right, swapped, "connective", text, positions)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            start, end = positions.start(node), positions.start(operand)
            yield _mutant(node, "negation", start, end, "")
        case ast.Constant(value=bool() as value):
            yield _whole(node, "constant", str(not value), positions)
        case ast.Constant(value=int() as value):
            yield _whole(node, "constant", str(value + 1), positions)
        case ast.If(test=test) | ast.While(test=test):
            yield _whole(test, "condition", f"(not ({_source(test, text, positions)}))", positions)
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield _whole(node, "statement", "pass", positions)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _whole(value, "result", "None", positions)


def _between(
    node: ast.expr,
    left: ast.expr,
    right: ast.expr,
    swapped: str,
    kind: str,
    text: str,
    positions: _Positions,
) -> Mutant:
    """Replace the operator between two operands, leaving brackets around them alone."""
    start, end = positions.end(left), positions.start(right)
    gap = text[start:end]
    opening = len(gap) - len(gap.rstrip("( \n\t"))
    closing = len(gap) - len(gap.lstrip(") \n\t"))
    replacement = gap[:closing] + swapped + gap[len(gap) - opening :]
    return _mutant(node, kind, start, end, replacement)


def _whole(node: ast.expr | ast.stmt, kind: str, replacement: str, positions: _Positions) -> Mutant:
    return _mutant(node, kind, positions.start(node), positions.end(node), replacement)


def _mutant(node: ast.expr | ast.stmt, kind: str, start: int, end: int, replacement: str) -> Mutant:
    return Mutant(kind=kind, line_number=node.lineno, start=start, end=end, replacement=replacement)


def _source(node: ast.expr, text: str, positions: _Positions) -> str:
    return text[positions.start(node) : positions.end(node)]


def _is_text(node: ast.expr) -> bool:
    """Whether an operand is plainly a string: joining those is no arithmetic."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )
