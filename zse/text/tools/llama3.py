"""Llama 3.1 to 3.3: bare objects, divided by semicolons where there are several.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}

Nothing but the object itself says that an answer is a call, so an answer that begins with a brace
is held, though only until a key or a name shows that it is none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.text.tools.call_object import CallObject
from zse.text.tools.format import CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered

TAG = "<|python_tag|>"
_BETWEEN = re.compile(r"[\s;]*")


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    yield from _read_objects(scanner, offered)
    while (yield from scanner.until((TAG,), scanner.say)):
        yield from _read_objects(scanner, offered)


def _read_objects(scanner: Scanner, offered: Offered) -> Reading[None]:
    scanner.keep()
    yield from scanner.skip_space()
    while (yield from CallObject(scanner, offered).read()):
        scanner.keep()
        yield from scanner.skip(_BETWEEN)
        if (yield from scanner.peek()) != "{":
            scanner.drop_kept()
            return
    scanner.say_kept()


GRAMMAR = CallGrammar(
    call=call_with('{"name": "%s", "parameters": ', "}"), between="; ", plain=r"([^{](?s:.*))?"
)
FORMAT = CallFormat(name="llama3", read=_read, markers=(TAG,), grammar=GRAMMAR)
