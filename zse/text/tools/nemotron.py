"""Nemotron, with Llama's name and Nano 2: a list of objects in a tag.

<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.text.tools.call_object import read_list
from zse.text.tools.format import CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered

OPEN, CLOSE = "<TOOLCALL>", "</TOOLCALL>"


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    while (yield from scanner.until((OPEN,), scanner.say)):
        scanner.keep(OPEN)
        yield from scanner.skip_space()
        if (yield from scanner.match("[")):
            yield from read_list(scanner, offered)
            yield from scanner.match(CLOSE)
        else:
            scanner.say_kept()


GRAMMAR = CallGrammar(
    call=call_with('{"name": "%s", "arguments": ', "}"),
    opener=OPEN,
    before="[",
    between=", ",
    after="]" + CLOSE,
)
FORMAT = CallFormat(name="nemotron", read=_read, tags=(OPEN, CLOSE), grammar=GRAMMAR)
