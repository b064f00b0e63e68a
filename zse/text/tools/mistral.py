"""Mistral: a control token, then a list of objects; newer models write name and arguments.

[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]
[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}
[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.text.tools.call_object import CallObject, read_container, read_list
from zse.text.tools.format import NAME, CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered
    from zse.text.tools.grammar import CallTool, Rules

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    while (yield from scanner.until((CALLS,), scanner.say)):
        scanner.keep()
        yield from scanner.skip_space()
        if (yield from scanner.match("[")):
            yield from read_list(scanner, offered)
        elif (yield from scanner.peek()) == "{":
            if not (yield from CallObject(scanner, offered).read()):
                scanner.say_kept()
        else:
            yield from _read_named(scanner, offered)


def _read_named(scanner: Scanner, offered: Offered) -> Reading[None]:
    name = yield from scanner.skip(NAME)
    if (yield from scanner.match(CALL_ID)):
        yield from scanner.skip(NAME)
    yield from scanner.match(ARGUMENTS)
    yield from scanner.skip_space()
    if name not in offered or (yield from scanner.peek()) != "{":
        scanner.say_kept()
        return
    scanner.open_call(name)
    yield from read_container(scanner, scanner.add_arguments)


def _call_rule(rules: Rules, tool: CallTool) -> str:
    """Newer vocabularies have a control token before the arguments; with others, a list is due."""
    if rules.control(ARGUMENTS):
        return call_with(f"%s{ARGUMENTS}")(rules, tool)
    return call_with(' [{"name": "%s", "arguments": ', "}]")(rules, tool)


FORMAT = CallFormat(
    name="mistral",
    read=_read,
    markers=(CALLS, CALL_ID, ARGUMENTS),
    grammar=CallGrammar(call=_call_rule, opener=CALLS, between=CALLS),
    call_id_characters=9,
)
