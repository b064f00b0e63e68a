"""A call written as a JSON object: ``{"name": ..., "arguments": {...}}``, in any order of its keys.

The name is known before the arguments nearly always; then these are handed out as they come, in the
model's own characters. What comes first otherwise is held until the name says that it is a call.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from zse.text.tools.literals import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered, Script

_ARGUMENTS = frozenset({"arguments", "parameters"})
_BETWEEN = re.compile(r"[\s,]*")
_KEYS = _ARGUMENTS | {"name", "type", "id", "function"}


def read_marked(
    markers: Sequence[str], call: str, read: Script, scanner: Scanner, offered: Offered
) -> Reading[None]:
    """Read text to its end, and one call behind each marker that begins one; say none of them."""
    while marker := (yield from scanner.until(markers, scanner.say)):
        if marker == call:
            scanner.keep()
            yield from read(scanner, offered)


def read_container(scanner: Scanner, sink: Callable[[str], None]) -> Reading[bool]:
    """Read an object or an array and hand over its text as it comes; False when it was cut.

    Only strings and brackets are looked at: what stands between them is the model's affair.
    """
    depth = 0
    while found := (yield from scanner.until(('"', "{", "[", "}", "]"), sink)):
        sink(found)
        if found == '"':
            if not (yield from _read_string_end(scanner, sink)):
                return False
            continue
        depth += 1 if found in "{[" else -1
        if depth <= 0:
            return True
    return False


def read_string(scanner: Scanner) -> Reading[str | None]:
    """Read a JSON string; None where there is none, or it was cut."""
    parts = ['"']
    if not (yield from scanner.match('"')):
        return None
    if not (yield from _read_string_end(scanner, parts.append)):
        return None
    try:
        return str(json.loads("".join(parts), strict=False))
    except ValueError:
        return None


def read_one_of(scanner: Scanner, words: Collection[str]) -> Reading[str]:
    """Read a quoted word; empty as soon as it is none of some."""
    word = ""
    if not (yield from scanner.match('"')):
        return ""
    while character := (yield from scanner.peek()):
        if character == '"' and word in words:
            yield from scanner.next()
            return word
        word += character
        if not any(each.startswith(word) for each in words):
            break
        yield from scanner.next()
    return ""


def _read_string_end(scanner: Scanner, sink: Callable[[str], None]) -> Reading[bool]:
    while found := (yield from scanner.until(('"', "\\"), sink)):
        sink(found)
        if found == '"':
            return True
        if not (escaped := (yield from scanner.next())):
            return False
        sink(escaped)
    return False


class CallObject:
    """Reads one object that should be a call of an offered tool.

    Args:
        scanner: Keeps what is read, and stands before the object.
        offered: What may be called.
        may_lack_arguments: A name alone is a call, too.
    """

    def __init__(
        self, scanner: Scanner, offered: Offered, *, may_lack_arguments: bool = False
    ) -> None:
        self._scanner = scanner
        self._offered = offered
        self._may_lack_arguments = may_lack_arguments
        self._name = ""
        self._held: list[str] = []
        self._is_open = self._is_nested = False

    def read(self) -> Reading[bool]:
        """Read it; False as soon as it is no call. What was read is kept then."""
        if not (yield from self._scanner.match("{")):
            return False
        is_whole = yield from self._members()
        if is_whole and not self._is_open and self._name:
            self._hand_over_held()
        return self._is_open

    def _hand_over_held(self) -> None:
        if self._held or self._may_lack_arguments:
            self._open()
            self._scanner.add_arguments("".join(self._held) or "{}")

    def _open(self) -> None:
        self._is_open = True
        self._scanner.open_call(self._name)

    def _members(self) -> Reading[bool]:
        scanner = self._scanner
        while True:
            yield from scanner.skip_space()
            if (yield from scanner.match("}")):
                return True
            key = yield from read_one_of(scanner, _KEYS)
            if not key:
                return False
            yield from scanner.skip_space()
            if not (yield from scanner.match(":")):
                return False
            yield from scanner.skip_space()
            if not (yield from self._member(key)):
                return False
            yield from scanner.skip_space()
            if not (yield from scanner.match(",")):
                return (yield from scanner.match("}"))

    def _member(self, key: str) -> Reading[bool]:
        if key == "name" and not self._name:
            self._name = yield from read_one_of(self._scanner, self._offered)
            return bool(self._name)
        if key in _ARGUMENTS and not (self._is_open or self._held):
            return (yield from self._arguments())
        if key == "type":
            return bool((yield from read_one_of(self._scanner, ("function",))))
        if key == "id":
            return (yield from read_string(self._scanner)) is not None
        if key == "function" and not self._is_nested:
            self._is_nested = yield from self._scanner.match("{")
            return self._is_nested and (yield from self._members())
        return False

    def _arguments(self) -> Reading[bool]:
        first = yield from self._scanner.peek()
        if first == "{":
            if self._name:
                self._open()
            sink = self._scanner.add_arguments if self._is_open else self._held.append
            return (yield from read_container(self._scanner, sink))
        text = "{}" if first == "n" else ""
        if first == '"':  # JSON within JSON
            text = (yield from read_string(self._scanner)) or ""
        elif first == "n" and not (yield from self._scanner.match("null")):
            return False
        if not _is_object(text):
            return False
        self._held.append(text)
        if self._name:
            self._hand_over_held()
        return True


def read_list(scanner: Scanner, offered: Offered) -> Reading[None]:
    """Read a list of calls behind its bracket; what is none is said as it was kept."""
    yield from scanner.skip_space()
    while (yield from CallObject(scanner, offered).read()):
        scanner.keep()
        yield from scanner.skip(_BETWEEN)
        if (yield from scanner.match("]")):
            scanner.drop_kept()
            return
    scanner.say_kept()


def _is_object(text: str) -> bool:
    try:
        return isinstance(json_value(text), dict)
    except ValueError:
        return False
