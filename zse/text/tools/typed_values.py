"""Arguments that are written as bare text, one by one: which become JSON by the types of a schema.

A text is a string where the schema says so or says nothing, and is handed out as it comes. Other
types are held until the value ends; what does not fit its type stays a string, so nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zse.text.tools.grammar import joined
from zse.text.tools.literals import json_value, literal_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.grammar import CallTool, Rules

_TYPES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (float, ("number",)),
    (str, ("string",)),
    (list, ("array",)),
    (dict, ("object",)),
    (type(None), ("null",)),
)


class ArgumentWriter:
    """Writes the JSON object of a call's arguments while they are read.

    Args:
        scanner: Gets the text.
        parameters: JSON schema of the arguments.
    """

    def __init__(self, scanner: Scanner, parameters: Mapping[str, Any]) -> None:
        properties = parameters.get("properties")
        self._schemas = properties if isinstance(properties, Mapping) else {}
        self._scanner = scanner
        self._before = "{"

    def read_value(
        self, key: str, read: Callable[[Callable[[str], None]], Reading[str]]
    ) -> Reading[bool]:
        """Read one value and write it under its key.

        Args:
            key: Name of the argument.
            read: Reads the value's text into a sink; what it returns is empty where it was cut.

        Returns:
            Whether the value is whole.
        """
        self._key(key)
        types = types_of(self._schemas.get(key))
        if types <= {"string"}:
            self._scanner.add_arguments('"')
            is_whole = bool((yield from read(self._escaped)))
            self._scanner.add_arguments('"' if is_whole else "")
            return is_whole
        held: list[str] = []
        is_whole = bool((yield from read(held.append)))
        if is_whole:
            self._scanner.add_arguments(typed_json("".join(held), types))
        return is_whole

    def add(self, key: str, value_json: str) -> None:
        """Write a value that is JSON already."""
        self._key(key)
        self._scanner.add_arguments(value_json)

    def end(self) -> None:
        self._scanner.add_arguments("{}" if self._before == "{" else "}")

    def _key(self, key: str) -> None:
        self._scanner.add_arguments(f"{self._before}{_quoted(key)}: ")
        self._before = ", "

    def _escaped(self, text: str) -> None:
        self._scanner.add_arguments(_quoted(text)[1:-1])


def types_of(schema: Any) -> frozenset[str]:
    """Return the types that a schema allows, as far as it names them; none where it does not."""
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set()
    if isinstance(named, list):
        found = {each for each in named if isinstance(each, str)}
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        for branch in branches if isinstance(branches, list) else ():
            found |= types_of({"type": branch.get("type")} if isinstance(branch, Mapping) else None)
    return frozenset(found)


def typed_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value written as text; a string where it has none of the types."""
    bare = text.strip()
    if _has_type(bare, types):
        return bare
    try:  # a list or a dict as Python writes it
        found = literal_json(bare)
    except ValueError:
        return _quoted(text)
    return found if _has_type(found, types) else _quoted(text)


def _has_type(text: str, types: frozenset[str]) -> bool:
    """Whether a text is JSON of one of the types."""
    try:
        value = json_value(text)
    except ValueError:
        return False
    return bool(types & set(next(names for kind, names in _TYPES if isinstance(value, kind))))


def parameter_rules(rules: Rules, tool: CallTool, *, before: str, after: str, between: str) -> str:
    """Return the expression of arguments that are written one by one, in the schema's order.

    Args:
        rules: Of the grammar.
        tool: Whose arguments.
        before: What opens a value; ``%s`` stands for its key.
        after: What closes it.
        between: What follows that.
    """
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    found = []
    for key, schema in properties.items() if isinstance(properties, Mapping) else ():
        value = _value_rule(rules, schema, after, is_strict=tool.is_strict)
        one = joined(rules.text(before.replace("%s", key)), value, rules.text(between))
        is_required = isinstance(required, list) and key in required
        found.append(one if is_required else f"({one})?")
    return " ".join(found)


def _value_rule(rules: Rules, schema: Any, after: str, *, is_strict: bool) -> str:
    schema = schema if isinstance(schema, Mapping) else {}
    if not types_of(schema) <= {"string"}:
        return joined(rules.json(schema, is_strict=is_strict), rules.text(after))
    members = schema.get("enum")
    if isinstance(members, list) and all(isinstance(each, str) for each in members):
        return joined("(" + " | ".join(map(rules.text, members)) + ")", rules.text(after))
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return rules.until(after, f"/(?s:.{{{least},{most}}})/")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
