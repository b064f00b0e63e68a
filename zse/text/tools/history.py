"""Earlier calls in the shape that a model's template reads: what templates do not agree on."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_ARGUMENTS = r"arguments['\"]?\]?\s*"
_JOINED = re.compile(rf"{_ARGUMENTS}\+|\+\s*[\w.\[\]'\"]*{_ARGUMENTS}-?}}}}")
"""Arguments beside a plus sign: only texts can be joined."""
_NO_CONTENT = re.compile(r"content['\"]?\]?\s+is\s+(?:not\s+)?none")

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

    def message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message as the template reads it."""
        changes: dict[str, Any] = {}
        if self.has_short_ids and "tool_call_id" in message:
            changes["tool_call_id"] = _short_id(message["tool_call_id"])
        if calls := message.get("tool_calls"):
            changes["tool_calls"] = [self._call(call) for call in calls]
            if self.has_null_content and not message.get("content"):
                changes["content"] = None
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
    )


def _short_id(call_id: str) -> str:
    """Return an id that fits; the same one for the same call."""
    if len(call_id) == _ID_CHARACTERS and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_ID_CHARACTERS]
