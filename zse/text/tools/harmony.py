"""Harmony, the form of gpt-oss: messages of a turn in channels, with reasoning and calls in one.

    <|channel|>analysis<|message|>The user wants ...<|end|><|start|>assistant<|channel|>commentary
    to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
    <|channel|>final<|message|>It is sunny.<|return|>

The prompt ends within the header of the first message, so an answer begins with the rest of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.text.tools.format import CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MARKERS = (START, CHANNEL, MESSAGE, "<|constrain|>", *_ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.-]+)")


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    found = CHANNEL if (yield from scanner.match(CHANNEL)) else ""
    if not found and (yield from scanner.match(" to=")):
        found = " to="
    while True:
        if found in (START, CHANNEL, " to="):
            found = yield from _read_message(scanner, offered, found)
        else:
            # What stands between messages is text of a model that forgot the form.
            found = yield from scanner.until(_MARKERS, scanner.say)
        if not found:
            return


def _read_message(scanner: Scanner, offered: Offered, opener: str) -> Reading[str]:
    """Read a header and its message; returns the marker that ended it."""
    header = [opener]
    scanner.keep()
    if (found := (yield from scanner.until((MESSAGE, *_ENDS), header.append))) != MESSAGE:
        scanner.say_kept()  # cut, or no header
        return found
    scanner.drop_kept()
    text = "".join(header)
    channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
    if recipient is not None and recipient[1] in offered:
        scanner.open_call(recipient[1])
        return (yield from scanner.until((START, *_ENDS), scanner.add_arguments))
    scanner.is_thinking = channel is not None and channel[1] == "analysis"
    scanner.trim_text()
    sink = scanner.think if scanner.is_thinking else scanner.say
    sink("\n")  # counts after another message of its kind
    found = yield from scanner.until((START, *_ENDS), sink)
    scanner.is_thinking = False
    return found


GRAMMAR = CallGrammar(
    call=call_with(f"{CHANNEL}commentary to=functions.%s <|constrain|>json{MESSAGE}"),
    is_single=True,
)
FORMAT = CallFormat(
    name="harmony",
    read=_read,
    markers=_MARKERS,
    grammar=GRAMMAR,
    text_opener=f"{CHANNEL}final{MESSAGE}",
    thinking=(f"{CHANNEL}analysis{MESSAGE}", f"<|end|>{START}assistant"),
)
