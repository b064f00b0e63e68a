"""Hermes, Qwen 2.5 and 3, and many that were trained after them; the built-in model too.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>

Qwen2.5-Coder was shown these tags and writes its calls bare, or in a fence of Markdown. An answer
that begins so is held until a name shows whether it is a call.
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

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FENCE = "```"
_REST = re.compile(r"[\s}]*")
"""What models put after an object: a brace too many is their most frequent slip."""


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    yield from _read_bare(scanner, offered)
    while (yield from scanner.until((OPEN,), scanner.say)):
        scanner.keep(OPEN)
        yield from scanner.skip_space()
        if (yield from CallObject(scanner, offered, may_lack_arguments=True).read()):
            yield from scanner.skip(_REST)
            yield from scanner.match(CLOSE)
        else:
            scanner.say_kept()


def _read_bare(scanner: Scanner, offered: Offered) -> Reading[None]:
    scanner.keep()
    yield from scanner.skip_space()
    is_fenced = yield from scanner.match(_FENCE + "json")
    yield from scanner.skip_space()
    while (yield from CallObject(scanner, offered).read()):
        scanner.keep()
        yield from scanner.skip(_REST)
        if (yield from scanner.peek()) != "{":
            if is_fenced:
                yield from scanner.match(_FENCE)
            scanner.drop_kept()
            return
    scanner.say_kept()


GRAMMAR = CallGrammar(
    call=call_with('\n{"name": "%s", "arguments": ', "}\n" + CLOSE),
    opener=OPEN,
    between="\n" + OPEN,
)
FORMAT = CallFormat(name="hermes", read=_read, tags=(OPEN, CLOSE), grammar=GRAMMAR)
