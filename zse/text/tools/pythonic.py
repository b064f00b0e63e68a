"""Llama 3.2 and 4, Olmo 3, LFM2: a list of Python calls; values are literals, read and never run.

    [get_weather(city="Paris", days=3), get_time()]
    <|python_start|>[get_weather(city="Paris")]<|python_end|>

An answer that begins with a bracket is held only until what follows is no name that was offered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zse.text.tools.format import CallFormat
from zse.text.tools.grammar import CallGrammar, joined
from zse.text.tools.literals import json_value, literal_json
from zse.text.tools.typed_values import ArgumentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered
    from zse.text.tools.grammar import CallTool, Rules

_OPENERS = ("<|python_start|>", "<|tool_call_start|>", "<function_calls>")
_CLOSERS = ("<|python_end|>", "<|tool_call_end|>", "</function_calls>")
_NAME = re.compile(r"[A-Za-z0-9_.]*")
_BETWEEN = re.compile(r"[\s,]*")
_VALUE_ENDS = ('"', "'", "(", "[", "{", ")", "]", "}", ",")


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    scanner.keep()
    yield from scanner.skip_space()
    if (yield from scanner.match("[")):
        yield from _read_calls(scanner, offered)
    else:
        scanner.say_kept()
    while (yield from scanner.until((*_OPENERS, *_CLOSERS), scanner.say)):
        scanner.keep()
        yield from scanner.skip_space()
        yield from scanner.match("[")  # or calls line by line
        yield from _read_calls(scanner, offered)


def _read_calls(scanner: Scanner, offered: Offered) -> Reading[None]:
    yield from scanner.skip_space()
    while True:
        name = yield from scanner.skip(_NAME)
        if name not in offered or not (yield from scanner.match("(")):
            scanner.say_kept()
            return
        scanner.open_call(name)
        if not (yield from _read_arguments(scanner, ArgumentWriter(scanner, offered[name]))):
            return
        scanner.keep()
        yield from scanner.skip(_BETWEEN)
        if (yield from scanner.match("]")):
            scanner.drop_kept()
            return


def _read_arguments(scanner: Scanner, arguments: ArgumentWriter) -> Reading[bool]:
    """Read ``city="Paris", days=3)``; False where it was cut, or is no such thing."""
    while True:
        yield from scanner.skip(_BETWEEN)
        if (yield from scanner.match(")")):
            arguments.end()
            return True
        key = yield from scanner.skip(_NAME)
        yield from scanner.skip_space()
        if not key or not (yield from scanner.match("=")):
            return False
        value: list[str] = []
        end = yield from _read_value(scanner, value.append)
        if not end:
            return False
        arguments.add(key, _json_of("".join(value).strip()))
        if end == ")":
            arguments.end()
            return True


def _read_value(scanner: Scanner, sink: Callable[[str], None]) -> Reading[str]:
    """Read a value and the comma or parenthesis that ends it, which is returned."""
    depth = 0
    while found := (yield from scanner.until(_VALUE_ENDS, sink)):
        if depth <= 0 and found in (",", ")"):
            return found
        sink(found)
        if found in ('"', "'"):
            if not (yield from _read_quoted(scanner, found, sink)):
                return ""
        else:
            depth += (found in "([{") - (found in ")]}")
    return ""


def _read_quoted(scanner: Scanner, quote: str, sink: Callable[[str], None]) -> Reading[bool]:
    while found := (yield from scanner.until((quote, "\\"), sink)):
        sink(found)
        if found == quote:
            return True
        sink((yield from scanner.next()))
    return False


def _json_of(text: str) -> str:
    try:
        json_value(text)  # which models mix in, and what they are held to
        return text
    except ValueError:
        pass
    try:
        return literal_json(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)  # whoever is called sees what was written


def _call_rule(rules: Rules, tool: CallTool) -> str:
    """Values are written as JSON, which is read here as Python's literals are."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    needed: list[str] = []
    others: list[str] = []
    for key, schema in properties.items() if isinstance(properties, Mapping) else ():
        if not _NAME.fullmatch(key):
            continue
        value = joined(rules.text(f"{key}="), rules.json(schema, is_strict=tool.is_strict))
        is_needed = isinstance(required, list) and key in required
        (needed if is_needed else others).append(rules.add(value))
    values = _comma_separated(needed, others)
    return joined(rules.text(f"{tool.name}("), values, rules.text(")"))


def _comma_separated(needed: Sequence[str], others: Sequence[str]) -> str:
    """Return an expression for all of some rules, and any of others behind them."""
    more = [f'(", " {rule})?' for rule in others]
    if needed:
        return joined(' ", " '.join(needed), *more)
    firsts = [joined(rule, *more[index + 1 :]) for index, rule in enumerate(others)]
    return f"({' | '.join(firsts)})?" if firsts else ""


FORMAT = CallFormat(
    name="pythonic",
    read=_read,
    markers=("<|python_start|>", "<|python_end|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    tags=("<function_calls>", "</function_calls>"),
    grammar=CallGrammar(
        call=_call_rule, before="[", between=", ", after="]", plain=r"([^\[](?s:.*))?"
    ),
)
