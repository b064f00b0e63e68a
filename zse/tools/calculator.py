"""Arithmetic on an expression: read into a tree, of which only known nodes are computed."""

from __future__ import annotations

import ast
import math
import operator
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from zse.tools.registry import Tool, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

Number: TypeAlias = int | float

_MOST_CHARACTERS = 500
_MOST_NESTING = 40
_MOST_BITS = 4096
"""Of a whole number, on the way as at the end."""
_MOST_FACTORIAL = 500
_MOST_DIGITS = 400
"""That something is rounded to: no number with a fraction has more."""

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}


class Expression(msgspec.Struct):
    expression: str
    """Such as 2 * (3 + 4) ** 2, sqrt(2), sin(pi / 6), log(8, 2), round(2.5, 1), max(1, 2)."""


def calculator() -> Tool:
    """Return the tool."""
    return Tool(
        "calculator",
        "Computes an arithmetic expression as it is written: + - * / // % **, parentheses, pi, e, "
        f"and {', '.join(sorted(_FUNCTIONS))}. Angles are in radians.",
        Expression,
        lambda asked: compute(asked.expression),
    )


def compute(expression: str) -> Number:
    """Return the value of an expression.

    Raises:
        ToolError: It is none, has no value, or its numbers grow too large.
    """
    if len(expression) > _MOST_CHARACTERS:
        raise ToolError(f"the expression has more than {_MOST_CHARACTERS} characters")
    if expression.count("(") + expression.count("**") > _MOST_NESTING:
        raise ToolError(f"the expression is nested deeper than {_MOST_NESTING}")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        words = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ToolError(f"{expression!r} has no value: {words}") from None
    except ZeroDivisionError:
        raise ToolError(f"{expression!r} divides by zero") from None
    except OverflowError:
        raise ToolError(f"{expression!r} is too large") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError(f"{expression!r} is too large")
    return value


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        assert isinstance(node.value, int | float)
        return _bounded(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id not in _FUNCTIONS:
            raise ToolError(f"there is no function {node.func.id!r}")
        return _called(node.func.id, [_value(each) for each in node.args])
    raise ToolError(f"{ast.unparse(node)!r} is no arithmetic")


def _called(name: str, values: list[Number]) -> Number:
    try:
        return _bounded(_FUNCTIONS[name](*values))
    except TypeError:
        raise ToolError(f"{name} does not take {len(values)} such numbers") from None


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        if base.bit_length() * exponent > _MOST_BITS:
            raise ToolError(f"{base} ** {exponent} is too large")
        return int(base**exponent)
    value: float | complex = float(base) ** exponent
    if isinstance(value, complex):
        raise ToolError(f"{base} ** {exponent} is no real number")
    return value


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= _MOST_FACTORIAL:
        raise ToolError(f"factorial takes a whole number from 0 to {_MOST_FACTORIAL}")
    return math.factorial(number)


def _rounded(number: Number, digits: Number | None = None) -> Number:
    """Round; a whole number is divided by a power of ten that has as many digits."""
    if digits is None:
        return round(number)
    if not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        raise ToolError(f"round takes a whole number of digits, {_MOST_DIGITS} at most")
    return round(number, digits)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ToolError(f"a number has more than {_MOST_BITS} bits")
    return value


_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "acos": math.acos,
    "asin": math.asin,
    "atan": math.atan,
    "atan2": math.atan2,
    "ceil": math.ceil,
    "cos": math.cos,
    "cosh": math.cosh,
    "degrees": math.degrees,
    "exp": math.exp,
    "factorial": _factorial,
    "floor": math.floor,
    "gcd": math.gcd,
    "hypot": math.hypot,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "pow": _power,
    "radians": math.radians,
    "round": _rounded,
    "sin": math.sin,
    "sinh": math.sinh,
    "sqrt": math.sqrt,
    "tan": math.tan,
    "tanh": math.tanh,
}
