"""Tool calls out of an answer's text, in the forms that models are trained to write.

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>      Hermes, Qwen, zse-tiny
    {"name": ..., "parameters": {...}}                            Llama 3, the whole answer
    [TOOL_CALLS] [{"name": ..., "arguments": {...}}]              Mistral
    [TOOL_CALLS]name[ARGS]{...}                                   Mistral, newer

What does not parse stays text: an answer is never lost because a model wrote half a call.
"""

from __future__ import annotations

import json
import re
from typing import Any

from zse.records import record
from zse.text.pieces import Arguments, CallOpening, Piece, Said

_DECODER = json.JSONDecoder()
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MISTRAL = "[TOOL_CALLS]"
_PYTHON_TAG = "<|python_tag|>"
_OPENERS = (_OPEN, _MISTRAL, _PYTHON_TAG)
_LONGEST_OPENER = max(map(len, _OPENERS))
_NAME_AND_ARGUMENTS = re.compile(r"\s*([A-Za-z0-9_.:-]+)\s*\[ARGS\]")
_OTHER_KEYS = frozenset({"id", "type", "name", "arguments", "parameters"})


@record
class ToolCall:
    """One call; ``arguments_json`` is the text of a JSON object."""

    name: str
    arguments_json: str


@record
class ParsedMessage:
    """An answer taken apart; ``content`` is None when nothing but calls was said."""

    content: str | None
    tool_calls: tuple[ToolCall, ...]


def parse_tool_calls(text: str) -> ParsedMessage:
    for parse in (_parse_tagged, _parse_mistral, _parse_bare):
        content, calls = parse(text)
        if calls:
            content = content.strip()
            return ParsedMessage(content=content or None, tool_calls=tuple(calls))
    return ParsedMessage(content=text, tool_calls=())


class ToolReader:
    """Splits a streamed answer into text and calls.

    Text flows until something that may open a call; from there on it is held until the call is
    closed or the answer ends, when it is read as a whole answer is. A call that is half written is
    never handed out.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_sent_text = False

    def push(self, text: str) -> list[Piece]:
        """Return what is certain after ``text``."""
        self._held += text
        pieces: list[Piece] = []
        while self._held:
            start = self._possible_start()
            if start > 0:
                pieces.append(Said(self._held[:start]))
                self._has_sent_text = self._has_sent_text or bool(self._held[:start].strip())
                self._held = self._held[start:]
                continue
            end = self._held.find(_CLOSE) + len(_CLOSE)
            if not self._held.startswith(_OPEN) or end < len(_CLOSE):
                break
            closed, self._held = self._held[:end], self._held[end:]
            pieces.extend(_pieces_of(closed))
        return pieces

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        return _pieces_of(held)

    def _possible_start(self) -> int:
        """Return where a call opens or may be opening; the length when nowhere."""
        held = self._held
        if not self._has_sent_text and held.lstrip().startswith("{"):
            return 0  # an answer that is one JSON object may be a call
        for start in range(len(held)):
            rest = held[start : start + _LONGEST_OPENER]
            if any(rest.startswith(opener) or opener.startswith(rest) for opener in _OPENERS):
                return start
        return len(held)


def _pieces_of(held: str) -> list[Piece]:
    parsed = parse_tool_calls(held)
    pieces: list[Piece] = [Said(parsed.content)] if parsed.content else []
    for call in parsed.tool_calls:
        pieces += (CallOpening(call.name), Arguments(call.arguments_json))
    return pieces


def _parse_tagged(text: str) -> tuple[str, list[ToolCall]]:
    calls: list[ToolCall] = []
    content: list[str] = []
    position = 0
    while (start := text.find(_OPEN, position)) >= 0:
        content.append(text[position:start])
        value, end = _json_at(text, start + len(_OPEN))
        call = _call(value)
        if call is None:
            content.append(_OPEN)
            position = start + len(_OPEN)
            continue
        calls.append(call)
        rest = text[end:]
        skipped = len(rest) - len(rest.lstrip())
        has_close = rest[skipped:].startswith(_CLOSE)
        position = end + (skipped + len(_CLOSE) if has_close else 0)
    content.append(text[position:])
    return "".join(content), calls


def _parse_mistral(text: str) -> tuple[str, list[ToolCall]]:
    before, *parts = text.split(_MISTRAL)
    calls: list[ToolCall] = []
    for part in parts:
        named = _NAME_AND_ARGUMENTS.match(part)
        value, end = _json_at(part, named.end() if named else 0)
        values = value if isinstance(value, list) else [value]
        if named:
            values = [{"name": named[1], "arguments": value}]
        found = [call for item in values if (call := _call(item)) is not None]
        if len(found) != len(values):
            return text, []
        calls += found
        before += part[end:]
    return before, calls


def _parse_bare(text: str) -> tuple[str, list[ToolCall]]:
    """The whole answer is one or more objects, divided by semicolons or spaces."""
    content, tag, rest = text.partition(_PYTHON_TAG)
    if not tag:
        content, rest = "", text
    calls: list[ToolCall] = []
    position = 0
    while rest[position:].strip(" \t\r\n;"):
        while rest[position] in " \t\r\n;":
            position += 1
        value, position = _json_at(rest, position)
        call = _call(value)
        if call is None:
            return text, []
        calls.append(call)
    return content, calls


def _json_at(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value that starts here and its end; None where there is none."""
    while position < len(text) and text[position].isspace():
        position += 1
    if text[position : position + 1] not in ("{", "["):
        return None, position
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None, position


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name or not set(value) <= _OTHER_KEYS:
        return None
    if "arguments" not in value and "parameters" not in value:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments, _ = _json_at(arguments, 0)
    if not isinstance(arguments, dict):
        return None
    return ToolCall(name=name, arguments_json=json.dumps(arguments, ensure_ascii=False))
