"""Granite 3 and Phi-4-mini: a control token, then a list of objects.

<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
<|tool_call|>[{"name": "get_time", "arguments": {}}]<|/tool_call|>
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.text.tools.call_object import read_list
from zse.text.tools.format import CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered

CALLS, CALLS_END = "<|tool_call|>", "<|/tool_call|>"


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    while marker := (yield from scanner.until((CALLS, CALLS_END), scanner.say)):
        if marker == CALLS:
            scanner.keep()
            yield from scanner.skip_space()
            if (yield from scanner.match("[")):
                yield from read_list(scanner, offered)
            else:
                scanner.say_kept()


GRAMMAR = CallGrammar(
    call=call_with('{"name": "%s", "arguments": ', "}"),
    opener=CALLS,
    before="[",
    between=", ",
    after="]",
)
FORMAT = CallFormat(name="granite", read=_read, markers=(CALLS, CALLS_END), grammar=GRAMMAR)
