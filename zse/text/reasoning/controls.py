"""How a request turns a model's reasoning on and off: by variables that its template reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
"""What ``reasoning_effort`` may be."""
_SWITCHES = ("enable_thinking", "thinking")
_NEAREST = {"minimal": "low", "xhigh": "high"}
"""Of the three that templates know."""
_TAG = re.compile(r"\{[{%]")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)", re.DOTALL)
_HISTORY_KEYS = ("reasoning_content", "reasoning", "thinking")


@record
class ThinkingControls:
    """What a template reads."""

    switch: str = ""
    """Variable that turns reasoning on and off; empty where there is none."""
    has_effort: bool = False
    """Whether it reads ``reasoning_effort``."""
    history_key: str = ""
    """Field of an earlier answer that holds its reasoning; empty where it reads none."""

    def variables(self, effort: str) -> dict[str, Any]:
        """Return what an effort sets; empty where it can change nothing, or none is asked for."""
        if not effort:
            return {}
        if effort == "none":
            return {self.switch: False} if self.switch else {}
        values: dict[str, Any] = {self.switch: True} if self.switch else {}
        if self.has_effort:
            values["reasoning_effort"] = _NEAREST.get(effort, effort)
        return values

    def history(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an earlier message with its reasoning where the template looks for it."""
        if self.history_key in ("", _HISTORY_KEYS[0]) or _HISTORY_KEYS[0] not in message:
            return message
        return {**message, self.history_key: message[_HISTORY_KEYS[0]]}


def controls_of(template: str) -> ThinkingControls:
    """Return what a template's source reads."""
    code = _code_of(template)
    return ThinkingControls(
        switch=next((name for name in _SWITCHES if _reads(code, name)), ""),
        has_effort=_reads(code, "reasoning_effort"),
        history_key=next((key for key in _HISTORY_KEYS if _reads_field(template, key)), ""),
    )


def _code_of(template: str) -> str:
    """Return what stands in a template's tags, without texts."""
    parts, at = [], 0
    while (tag := _TAG.search(template, at)) is not None:
        end = template.find("%}" if tag[0] == "{%" else "}}", tag.end())
        if end < 0:
            break
        parts.append(_STRING.sub("''", template[tag.end() : end]))
        at = end + 2
    return "\n".join(parts)


def _reads(code: str, name: str) -> bool:
    """Whether a variable is read, which is no field."""
    return re.search(rf"(?<![\w.]){name}\b(?!\s*:)", code) is not None


def _reads_field(template: str, name: str) -> bool:
    return re.search(rf"\.{name}\b|\[['\"]{name}['\"]\]|['\"]{name}['\"] in ", template) is not None
