"""Strict, bounded JSON for headers that come from strangers.

The document is measured before it is parsed: its nesting and its number of values are counted on
the raw bytes, so that a hostile header costs a scan and never a deep stack or a huge object tree.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from zse.format.errors import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 32
MAX_TOKENS = 8_000_000
"""Commas, colons, quotes and opening brackets. A 100-layer model needs about 150,000."""

_Kind = TypeVar("_Kind")
INT63_MAX = 2**63 - 1
# Matches every string, also an unterminated one up to the end, so that the scan stays linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NOT_OF_STRUCTURE = bytes(set(_NOT_BRACKETS) - set(b'"\\'))
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def dump_canonical(document: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return UTF-8 JSON with sorted keys and no spaces: one document, one byte string.

    Args:
        document: What has a JSON form, or gets one from ``default``.
        default: Returns the form of what has none; raises TypeError where there is none.

    Raises:
        FormatError: A string cannot be encoded in UTF-8. A value has no JSON form (NaN, an object
            of another type).
    """
    try:
        text = json.dumps(
            document,
            default=default,
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Rule.BAD_HEADER_ENCODING(
            f"the header holds a lone surrogate: {error.reason}"
        ) from None
    except (TypeError, ValueError) as error:
        raise Rule.BAD_HEADER_JSON(f"the header cannot be written as JSON: {error}") from None


def parse_object(raw: bytes, where: str = "the header") -> dict[str, Any]:
    """Parse one JSON object, refusing what is deep, huge, ambiguous or not strict JSON.

    Raises:
        FormatError: Its ``rule`` says what is broken.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Rule.BAD_HEADER_ENCODING(
            f"{where} is not UTF-8: byte {error.start} ({error.reason})"
        ) from None
    openings = raw.count(b"[") + raw.count(b"{")
    tokens = openings + raw.count(b",") + raw.count(b":") + raw.count(b'"')
    if tokens > MAX_TOKENS:
        raise Rule.HEADER_TOO_COMPLEX(f"{where} holds {tokens} tokens, the limit is {MAX_TOKENS}")
    if openings > MAX_DEPTH and _is_too_deep(raw):
        raise Rule.HEADER_TOO_DEEP(f"{where} nests deeper than {MAX_DEPTH} levels")
    try:
        document = _STRICT.decode(text)
    except ValueError as error:
        raise Rule.BAD_HEADER_JSON(f"{where} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Rule.BAD_HEADER_JSON(f"{where} is a {type(document).__name__}, not an object")
    if _SURROGATE_ESCAPE.search(text):
        dump_canonical(document)
    return document


def _brackets(raw: bytes) -> bytes:
    """Return the brackets of a document that stand outside of its strings.

    Strings without brackets and escapes leave two quotes behind each other. Where only such ones
    are left, and pairs of quotes are taken away, no quote remains: before a bracket inside of a
    string there is an odd number of them.
    """
    left = raw.translate(None, _NOT_OF_STRUCTURE).replace(b'""', b"")
    if b'"' not in left and b"\\" not in left:
        return left
    return _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS)


def _is_too_deep(raw: bytes) -> bool:
    brackets = _brackets(raw)
    for _ in range(4):  # what is as shallow as most headers needs no look at each bracket
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    depth = 4
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Rule.DUPLICATE_KEY(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds the number {text[:40]}, which is not finite")
    return number


_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant, parse_float=_finite_float
)


class Fields:
    """One object of the header, read field by field, each with its type.

    Args:
        keys: The exact set of keys that the object must have.

    Raises:
        FormatError: Not an object, or a key is missing or unknown.
    """

    def __init__(self, value: object, where: str, keys: frozenset[str]) -> None:
        if not isinstance(value, dict):
            raise Rule.BAD_HEADER_FIELD(f"{where} is a {type(value).__name__}, not an object")
        if value.keys() != keys:
            missing = sorted(keys - value.keys())
            unknown = sorted(key[:80] for key in value.keys() - keys)
            raise Rule.BAD_HEADER_FIELD(
                f"{where}: missing fields {missing}, unknown fields {unknown}"
            )
        self._record: dict[str, Any] = value
        self._where = where

    def text(self, key: str) -> str:
        return self._typed(key, str)

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list)

    def record(self, key: str) -> dict[str, Any]:
        return self._typed(key, dict)

    def flag(self, key: str) -> bool:
        return self._typed(key, bool)

    def count(self, key: str, low: int = 0, high: int = INT63_MAX) -> int:
        """Return a whole number in ``low .. high``."""
        number = self._record[key]
        if type(number) is int and low <= number <= high:
            return number
        as_count(number, f"{self._where}: {key}")
        raise Rule.BAD_HEADER_FIELD(f"{self._where}: {key} is {number}, not in {low} .. {high}")

    def counts(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers in 0 .. 2**63-1."""
        return tuple(as_count(item, f"{self._where}: {key}") for item in self.items(key))

    def _typed(self, key: str, kind: type[_Kind]) -> _Kind:
        value = self._record[key]
        if not isinstance(value, kind):
            raise Rule.BAD_HEADER_FIELD(
                f"{self._where}: {key} is a {type(value).__name__}, not a {kind.__name__}"
            )
        return value


def as_count(value: object, where: str) -> int:
    """Check that a JSON value is a whole number in 0 .. 2**63-1.

    Raises:
        FormatError: Not a whole number. Below zero. Over 63 bits.
    """
    if type(value) is not int:
        raise Rule.BAD_HEADER_FIELD(f"{where} is a {type(value).__name__}, not a whole number")
    if value < 0:
        raise Rule.NEGATIVE_OFFSET(f"{where} is {value}, below zero")
    if value > INT63_MAX:
        raise Rule.OFFSET_OVERFLOW(f"{where} is about 2**{value.bit_length()}, over 63 bits")
    return value
