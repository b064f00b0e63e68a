"""What an answer of the corpus is, the tools that are offered, and calls that many forms write."""

from __future__ import annotations

import json
from typing import NamedTuple

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
    },
    "get_time": {"type": "object", "properties": {}},
    "write_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "options": {"type": "object"},
            "lines": {"type": "array"},
            "is_final": {"type": "boolean"},
            "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    },
}


class Sample(NamedTuple):
    """One answer and what it says."""

    form: str
    what: str
    text: str
    said: str = ""
    calls: tuple[tuple[str, object], ...] = ()
    """Name and arguments; a text where they are cut or no JSON."""
    thought: str = ""
    reasoning: str = "none"
    prompt: str = ""


PARIS = ("get_weather", {"city": "Paris"})
TIME = ("get_time", {})
TAG = ("write_file", {"path": "a.txt", "content": 'say </tool_call> {"}\n'})
UNICODE = ("get_weather", {"city": "Köln 東京 👩‍👩‍👧"})
NESTED = (
    "write_file",
    {"path": "a", "options": {"mode": [6, {"x": "]}"}], "deep": {"a": {"b": [[]]}}}},
)


def call_json(call, arguments_key="arguments"):
    return json.dumps({"name": call[0], arguments_key: call[1]}, ensure_ascii=False)
