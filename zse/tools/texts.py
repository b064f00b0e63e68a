"""What models get wrong about texts: letters, lengths, places; and values deep in JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zse.tools.registry import Tool, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CHARACTERS = 100_000
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


class JSONText(msgspec.Struct):
    text: str
    """JSON."""
    path: str = ""
    """Where the value lies, such as items[0].name; empty means all of it."""


def parse_json() -> Tool:
    """Return the tool that reads JSON and finds a value in it."""
    return Tool(
        "parse_json",
        "Reads JSON and returns the value at a path such as items[0].name, or all of it.",
        JSONText,
        lambda asked: find(asked.text, asked.path),
    )


def find(text: str, path: str) -> Any:
    """Return the value at a path in a text of JSON.

    Raises:
        ToolError: The text is no JSON, the path is none, or nothing lies there.
    """
    try:
        value = msgspec.json.decode(_bounded(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ToolError(f"it is no JSON: {error}") from None
    done = 0
    for step in _STEP.finditer(path):
        if step.start() != done:
            break
        done = step.end()
        value = _inside(value, step, path)
    if done != len(path):
        raise ToolError(f"{path!r} is no path: items[0].name is one")
    return value


def _inside(value: Any, step: re.Match[str], path: str) -> Any:
    try:
        if step[2] is not None and isinstance(value, list):
            return value[int(step[2])]
        if step[1] is not None and isinstance(value, dict):
            return value[step[1]]
    except (IndexError, KeyError):
        pass
    there = f"keys {list(value)[:20]}" if isinstance(value, dict) else type(value).__name__
    raise ToolError(f"nothing lies at {path[: step.end()]!r}; there are {there}")


class TextWork(msgspec.Struct):
    operation: Literal[
        "upper", "lower", "title", "strip", "reverse", "length", "words", "lines", "count",
        "find", "split", "join", "replace", "slice",
    ]  # fmt: skip
    text: str = ""
    other: str = ""
    """What to count, find or replace, or the separator of split and join."""
    replacement: str = ""
    """Of replace."""
    parts: list[str] = []
    """Of join."""
    start: int = 0
    """Of slice."""
    end: int | None = None
    """Of slice; without it to the end."""


def string_ops() -> Tool:
    """Return the tool for exact work on texts."""
    return Tool(
        "string_ops",
        "Works on a text letter by letter: upper, lower, title, strip, reverse, length, words, "
        "lines, count, find, split, join, replace, slice.",
        TextWork,
        work,
    )


def work(asked: TextWork) -> object:
    """Carry out one operation.

    Raises:
        ToolError: The texts are too long, or ``other`` is missing.
    """
    _bounded(asked.text, asked.other, asked.replacement, *asked.parts)
    if asked.operation in ("count", "find", "replace") and not asked.other:
        raise ToolError(f"{asked.operation} needs 'other'")
    result = _OPERATIONS[asked.operation](asked)
    if isinstance(result, str):
        _bounded(result)
    return result


def _replaced(asked: TextWork) -> str:
    grown = asked.text.count(asked.other) * len(asked.replacement) + len(asked.text)
    if grown > _MOST_CHARACTERS:
        raise ToolError(f"the result would have more than {_MOST_CHARACTERS} characters")
    return asked.text.replace(asked.other, asked.replacement)


def _joined(asked: TextWork) -> str:
    if len(asked.parts) * len(asked.other) > _MOST_CHARACTERS:
        raise ToolError(f"the result would have more than {_MOST_CHARACTERS} characters")
    return asked.other.join(asked.parts)


def _bounded(*texts: str) -> str:
    if sum(map(len, texts)) > _MOST_CHARACTERS:
        raise ToolError(f"the texts have more than {_MOST_CHARACTERS} characters")
    return texts[0]


_OPERATIONS: dict[str, Callable[[TextWork], object]] = {
    "upper": lambda asked: asked.text.upper(),
    "lower": lambda asked: asked.text.lower(),
    "title": lambda asked: asked.text.title(),
    "strip": lambda asked: asked.text.strip(asked.other or None),
    "reverse": lambda asked: asked.text[::-1],
    "length": lambda asked: len(asked.text),
    "words": lambda asked: len(asked.text.split()),
    "lines": lambda asked: len(asked.text.splitlines()),
    "count": lambda asked: asked.text.count(asked.other),
    "find": lambda asked: asked.text.find(asked.other),
    "split": lambda asked: asked.text.split(asked.other or None),
    "join": _joined,
    "replace": _replaced,
    "slice": lambda asked: asked.text[asked.start : asked.end],
}
