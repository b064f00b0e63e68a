"""DeepSeek V3, R1 and V3.1: control tokens around names and arguments.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from zse.text.tools.call_object import read_container, read_marked
from zse.text.tools.format import NAME, CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_MARKERS = (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR)
_FENCE_END = re.compile(r"[\s`]*")


def _read_call(scanner: Scanner, offered: Offered) -> Reading[None]:
    name = yield from scanner.skip(NAME)
    if (yield from scanner.match(SEPARATOR)):
        yield from scanner.skip_space()
        if (yield from scanner.peek()) != "{":  # what stood before it is the kind of tool
            name = yield from scanner.skip(NAME)
            yield from scanner.skip_space()
            yield from scanner.match("```json")
            yield from scanner.skip_space()
    if name not in offered or (yield from scanner.peek()) != "{":
        scanner.say_kept()
        return
    scanner.open_call(name)
    if (yield from read_container(scanner, scanner.add_arguments)):
        yield from scanner.skip(_FENCE_END)


GRAMMAR = CallGrammar(
    call=call_with(f"{CALL}function{SEPARATOR}%s\n```json\n", f"\n```{CALL_END}"),
    opener=CALLS,
    between="\n",
    after=CALLS_END,
)
FORMAT = CallFormat(
    name="deepseek",
    read=partial(read_marked, _MARKERS, CALL, _read_call),
    markers=_MARKERS,
    grammar=GRAMMAR,
)
