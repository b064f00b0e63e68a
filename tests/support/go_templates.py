"""A judge of charts where there is no helm: the part of Go's templates and Sprig that our chart uses.

Anything else is an error, so the chart stays within what is read here; where helm is installed a
test compares the two.
"""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

_TAG = re.compile(r"\{\{(-)?((?:[^}\"]|\"(?:[^\"\\]|\\.)*\")*?)(-)?\}\}", re.DOTALL)
_WORD = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[()|,]|:=|\$?\.?[\w.]+|\$)')


class RefusedError(Exception):
    """The chart itself refused its values."""


def _required(message: str, value: Any) -> Any:
    if value in ("", None):
        raise RefusedError(message)
    return value


def _fail(message: str) -> None:
    raise RefusedError(message)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool) else str(value)


FUNCTIONS: dict[str, Any] = {
    "quote": lambda value: json.dumps(_text(value)),
    "toString": _text,
    "toJson": lambda value: json.dumps(value, separators=(",", ":")),
    "int": int,
    "add": lambda *values: sum(values),
    "sub": lambda first, second: first - second,
    "max": max,
    "printf": lambda form, *values: form % values,
    "ternary": lambda yes, no, which: yes if which else no,
    "default": lambda other, value: value or other,
    "required": _required,
    "fail": _fail,
    "eq": lambda first, second: first == second,
    "ne": lambda first, second: first != second,
    "not": lambda value: not value,
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "or": lambda *values: next((value for value in values if value), values[-1]),
}


class _Expression:
    """Words of one expression, worked on from the left."""

    def __init__(self, text: str, dot: Any, names: dict[str, Any]) -> None:
        self.words = _WORD.findall(text)
        assert "".join(self.words) == re.sub(r"\s+(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", "", text), text
        self.dot, self.names = dot, names

    def pipeline(self) -> Any:
        value = self.call()
        while self.words and self.words[0] == "|":
            self.words.pop(0)
            value = self.call(value)
        return value

    def call(self, *last: Any) -> Any:
        if self.words[0] in FUNCTIONS:
            function = FUNCTIONS[self.words.pop(0)]
            values = []
            while self.words and self.words[0] not in "|)":
                values.append(self.operand())
            return function(*values, *last)
        assert not last, self.words
        return self.operand()

    def operand(self) -> Any:
        word = self.words.pop(0)
        if word == "(":
            value = self.pipeline()
            assert self.words.pop(0) == ")"
            return value
        if word.startswith('"'):
            return json.loads(word)
        if word.isdigit():
            return int(word)
        name, _, path = word.partition(".")
        value = self.names[name] if name else self.dot
        for part in filter(None, path.split(".")):
            value = value.get(part) if name else value[part]
        return value


def _pieces(text: str) -> list[tuple[str, str]]:
    """Return texts and tags in turn, white space gone where a dash says so."""
    pieces, at, trims = [], 0, False
    for tag in _TAG.finditer(text):
        before = text[at : tag.start()]
        before = before.lstrip() if trims else before
        pieces += [("text", before.rstrip() if tag[1] else before), ("tag", tag[2].strip())]
        at, trims = tag.end(), bool(tag[3])
    assert "{{" not in text[at:]
    return [*pieces, ("text", text[at:].lstrip() if trims else text[at:])]


def render(text: str, root: dict[str, Any]) -> str:
    """Render one template."""
    pieces = _pieces(text)
    written = _block(pieces, root, {"$": root}, True)
    assert not pieces, "an end too many"
    return written


def _block(pieces: list[tuple[str, str]], dot: Any, names: dict[str, Any], runs: bool) -> str:
    out: list[str] = []
    while pieces:
        kind, text = pieces.pop(0)
        word, _, rest = text.partition(" ")
        if kind == "text":
            out.append(text if runs else "")
        elif text == "end" or word == "else":
            pieces.insert(0, (kind, text))
            break
        elif word in {"if", "with", "range"}:
            out.append(_branch(word, rest, pieces, dot, names, runs))
        elif runs:
            out.append(_text(_Expression(text, dot, names).pipeline()))
    return "".join(out)


def _branch(
    word: str, rest: str, pieces: list[tuple[str, str]], dot: Any, names: dict[str, Any], runs: bool
) -> str:
    variables, _, expression = rest.rpartition(":= ")
    value = _Expression(expression, dot, names).pipeline() if runs else None
    body, out = copy.copy(pieces), ""
    if word == "range":
        items = value.items() if isinstance(value, dict) else enumerate(value or ())
        for pair in sorted(items, key=lambda item: item[0]):
            own = dict(zip(variables.replace(" ", "").split(","), pair, strict=True))
            out += _block(copy.copy(body), pair[1], {**names, **own}, runs)
    elif value:
        out = _block(copy.copy(body), value if word == "with" else dot, names, runs)
    _block(pieces, dot, names, False)  # to the end, or the other branch
    if pieces[0][1] == "else":
        pieces.pop(0)
        out += _block(pieces, dot, names, runs and not value)
    assert pieces.pop(0) == ("tag", "end")
    return out


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return defaults with what was given, tree by tree."""
    both = {k: merged(defaults[k], v) if isinstance(v, dict) and k in defaults else v
            for k, v in given.items()}  # fmt: skip
    return {**defaults, **both}


def render_chart(
    chart: Path, given: dict[str, Any], *, name: str, namespace: str = "default"
) -> list[dict[str, Any]]:
    """Return the documents of a chart.

    Raises:
        RefusedError: The chart refuses the values.
    """
    values = merged(yaml.safe_load((chart / "values.yaml").read_text()), given)
    release = {"Name": name, "Namespace": namespace, "Service": "Helm"}
    root = {"Values": values, "Release": release}
    texts = [render(path.read_text(), root) for path in sorted(chart.glob("templates/*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]
