"""GLM 4.5 and later: the name, then keys and values in tags; values are bare text or JSON.

<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from zse.text.tools.format import NAME, CallFormat
from zse.text.tools.grammar import CallGrammar, joined
from zse.text.tools.hermes import CLOSE, OPEN
from zse.text.tools.typed_values import ArgumentWriter, parameter_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered
    from zse.text.tools.grammar import CallTool, Rules

_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    while (yield from scanner.until((OPEN,), scanner.say)):
        scanner.keep(OPEN)
        yield from scanner.skip_space()
        name = yield from scanner.skip(NAME)
        yield from scanner.skip_space()
        if name not in offered or (yield from scanner.peek()) != "<":
            scanner.say_kept()
            continue
        scanner.open_call(name)
        yield from _read_arguments(scanner, ArgumentWriter(scanner, offered[name]))


def _read_arguments(scanner: Scanner, arguments: ArgumentWriter) -> Reading[None]:
    while (yield from scanner.match(_KEY)):
        key: list[str] = []
        if not (yield from scanner.until((_KEY_END,), key.append)):
            return
        yield from scanner.skip_space()
        if not (yield from scanner.match(_VALUE)):
            return
        name = "".join(key).strip()
        if not (yield from arguments.read_value(name, partial(_read_value, scanner))):
            return
        yield from scanner.skip_space()
    if (yield from scanner.match(CLOSE)) or (yield from scanner.peek()):
        arguments.end()


def _read_value(scanner: Scanner, sink: Callable[[str], None]) -> Reading[str]:
    return scanner.until((_VALUE_END,), sink)


def _call_rule(rules: Rules, tool: CallTool) -> str:
    parameters = parameter_rules(
        rules,
        tool,
        before=f"{_KEY}%s{_KEY_END}\n{_VALUE}",
        after=_VALUE_END,
        between="\n",
    )
    return joined(rules.text(tool.name + "\n"), parameters, rules.text(CLOSE))


FORMAT = CallFormat(
    name="glm",
    read=_read,
    tags=(OPEN, CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END),
    grammar=CallGrammar(call=_call_rule, opener=OPEN, between="\n" + OPEN),
)
