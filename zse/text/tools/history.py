"""Earlier calls in the shape that a model's template reads: what templates do not agree on."""

from __future__ import annotations

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


@record
class CallHistory:
    """How a template wants a message that calls tools."""

    has_text_arguments: bool = False
    """Arguments are JSON text; else they are the values themselves."""
    has_null_content: bool = False
    """A message that says nothing has no content; else its content is an empty text."""

    def message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message as the template reads it."""
        if not message.get("tool_calls"):
            return message
        changes: dict[str, Any] = {}
        if self.has_null_content and not message.get("content"):
            changes["content"] = None
        if self.has_text_arguments:
            changes["tool_calls"] = [_with_text(call) for call in message["tool_calls"]]
        return {**message, **changes}


def call_history_of(template: str) -> CallHistory:
    """Return what a template's source wants."""
    return CallHistory(
        has_text_arguments=_JOINED.search(template) is not None,
        has_null_content=_NO_CONTENT.search(template) is not None,
    )


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
