"""Kimi K2: control tokens around names, which are numbered, and arguments.

<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from zse.text.tools.call_object import read_container, read_marked
from zse.text.tools.format import NAME, CallFormat
from zse.text.tools.grammar import CallGrammar, call_with, joined

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered
    from zse.text.tools.grammar import CallTool, Rules

CALLS, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_MARKERS = (CALLS, CALLS_END, CALL, CALL_END, ARGUMENTS)
_NUMBER = re.compile(r"[:0-9\s]*")


def _read_call(scanner: Scanner, offered: Offered) -> Reading[None]:
    yield from scanner.skip_space()
    name = (yield from scanner.skip(NAME)).removeprefix("functions.")
    yield from scanner.skip(_NUMBER)
    has_arguments = yield from scanner.match(ARGUMENTS)
    yield from scanner.skip_space()
    if not has_arguments or name not in offered or (yield from scanner.peek()) != "{":
        scanner.say_kept()
        return
    scanner.open_call(name)
    if (yield from read_container(scanner, scanner.add_arguments)):
        yield from scanner.skip_space()


def _call_rule(rules: Rules, tool: CallTool) -> str:
    name = rules.text(f"{CALL}functions.{tool.name}:")
    return joined(name, rules.add("/[0-9]{1,3}/"), call_with(ARGUMENTS, CALL_END)(rules, tool))


GRAMMAR = CallGrammar(call=_call_rule, opener=CALLS, after=CALLS_END)
FORMAT = CallFormat(
    name="kimi",
    read=partial(read_marked, _MARKERS, CALL, _read_call),
    markers=_MARKERS,
    grammar=GRAMMAR,
)
