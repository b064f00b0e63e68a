"""Harmony, the form of gpt-oss: messages of a turn in channels, with reasoning and calls in one.

    <|channel|>analysis<|message|>The user wants ...<|end|><|start|>assistant<|channel|>commentary
    to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
    <|channel|>final<|message|>It is sunny.<|return|>

The prompt ends within the header of the first message, so an answer begins with the rest of it. A
model that forgets how a message ends begins the next one, or writes a marker twice: every marker
ends a message, and none is shown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.text.tools.format import CallFormat
from zse.text.tools.grammar import CallGrammar, call_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MARKERS = (START, CHANNEL, MESSAGE, "<|constrain|>", *_ENDS)
_OPENERS = (START, CHANNEL, *_ENDS)
"""What ends a message: its own end, or the beginning of another."""
_HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code")
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
    found = yield from scanner.until((MESSAGE, *_ENDS), header.append)
    text = "".join(header)
    if found != MESSAGE and not _is_header(text):
        scanner.say_kept()  # text of a model that forgot the form
        return found
    scanner.drop_kept()
    if found != MESSAGE:  # cut
        return found
    channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
    if recipient is not None and recipient[1] in offered:
        scanner.open_call(recipient[1])
        return (yield from _read_body(scanner, scanner.add_arguments))
    scanner.is_thinking = channel is not None and channel[1] == "analysis"
    scanner.trim_text()
    sink = scanner.think if scanner.is_thinking else scanner.say
    sink("\n")  # counts after another message of its kind
    found = yield from _read_body(scanner, sink)
    scanner.is_thinking = False
    return found


def _is_header(text: str) -> bool:
    """Return whether a text is the beginning of a header, and not one of an answer."""
    for marker in _MARKERS:
        text = text.replace(marker, " ")
    return all(
        word.startswith("to=") or any(known.startswith(word) for known in _HEADER_WORDS)
        for word in text.split()
    )


def _read_body(scanner: Scanner, sink: Callable[[str], None]) -> Reading[str]:
    """Read a message behind its header; returns the marker that ended it."""
    while (found := (yield from scanner.until(_MARKERS, sink))) and found not in _OPENERS:
        pass  # a marker of headers, which has no meaning here
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
