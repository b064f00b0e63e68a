"""Earlier calls in the shape that a model's template reads: what templates do not agree on."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ARGUMENTS = r"arguments['\"]?\]?\s*"
_JOINED = re.compile(rf"{_ARGUMENTS}\+|\+\s*[\w.\[\]'\"]*{_ARGUMENTS}-?}}}}")
"""Arguments beside a plus sign: only texts can be joined."""
_NO_CONTENT = re.compile(r"content['\"]?\]?\s+is\s+(?:not\s+)?none")

_FIRST_CALL = re.compile(r"tool_calls['\"]?\]?\s*(?:\[0\]|\|\s*first)")
_EVERY_CALL = re.compile(r"\bin\s+[\w.\['\"]*tool_calls")
_ONE_TEXT = re.compile(r"content['\"]?\]?\s+and\s+\w+[.\[]['\"]?thinking")

_NINE_CHARACTERS = re.compile(r"id['\"]?\]?\s*\|\s*length\s*(?:!=|<)\s*9")
_ID_CHARACTERS = 9


@record
class CallHistory:
    """How a template wants a message that calls tools."""

    has_text_arguments: bool = False
    """Arguments are JSON text; else they are the values themselves."""
    has_null_content: bool = False
    """A message that says nothing has no content; else its content is an empty text."""
    has_short_ids: bool = False
    """Ids of calls are nine letters or digits, whoever made them."""
    has_single_calls: bool = False
    """Only the first call of a message is printed."""
    has_one_text: bool = False
    """A message that calls has reasoning or content, never both."""

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return a conversation as the template reads it."""
        found = [self.message(message) for message in messages]
        return _with_one_call_each(found) if self.has_single_calls else found

    def message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message as the template reads it."""
        changes: dict[str, Any] = {}
        if self.has_short_ids and "tool_call_id" in message:
            changes["tool_call_id"] = _short_id(message["tool_call_id"])
        if calls := message.get("tool_calls"):
            changes["tool_calls"] = [self._call(call) for call in calls]
            if self.has_null_content and not message.get("content"):
                changes["content"] = None
            if self.has_one_text:
                changes |= _as_one_text(message)
        return {**message, **changes} if changes else message

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        changes: dict[str, Any] = {}
        if self.has_text_arguments and not isinstance(arguments, str):
            text = json.dumps(arguments, ensure_ascii=False)
            changes["function"] = {**function, "arguments": text}
        if self.has_short_ids and "id" in call:
            changes["id"] = _short_id(call["id"])
        return {**call, **changes}


def call_history_of(template: str) -> CallHistory:
    """Return what a template's source wants."""
    return CallHistory(
        has_text_arguments=_JOINED.search(template) is not None,
        has_null_content=_NO_CONTENT.search(template) is not None,
        has_short_ids=_NINE_CHARACTERS.search(template) is not None,
        has_single_calls=_FIRST_CALL.search(template) is not None
        and _EVERY_CALL.search(template) is None,
        has_one_text=_ONE_TEXT.search(template) is not None,
    )


def _with_one_call_each(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages of which each has one call at most, and its result behind it."""
    found: list[Mapping[str, Any]] = []
    remaining = deque(messages)
    while remaining:
        message = remaining.popleft()
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        results: dict[Any, list[Mapping[str, Any]]] = {}
        while remaining and remaining[0].get("role") == "tool":
            result = remaining.popleft()
            results.setdefault(result.get("tool_call_id"), []).append(result)
        for index, call in enumerate(calls):
            said = {} if index == 0 else {"content": "", "reasoning_content": ""}
            found.append({**message, **said, "tool_calls": [call]})
            found += results.pop(call.get("id"), ())
        found += itertools.chain(*results.values())
    return found


def _as_one_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what changes where a message has reasoning and content: both are reasoning."""
    reasoning, content = message.get("reasoning_content"), message.get("content")
    if not (reasoning and content):
        return {}
    return {"reasoning_content": f"{reasoning}\n\n{content}", "content": ""}


def _short_id(call_id: str) -> str:
    """Return an id that fits; the same one for the same call."""
    if len(call_id) == _ID_CHARACTERS and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_ID_CHARACTERS]
