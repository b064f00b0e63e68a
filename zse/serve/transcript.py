"""Pieces of a conversation in the words of chat templates, which every protocol makes them of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

Message = dict[str, Any]
ASSISTANT = frozenset({"assistant"})


def call_of(call_id: str, name: str, arguments: str | dict[str, Any]) -> Message:
    """Return an earlier call of the assistant; templates print its arguments as JSON themselves."""
    if isinstance(arguments, str):
        arguments = parsed_arguments(arguments)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def parsed_arguments(text: str) -> Any:
    """Return what JSON text says, or the text where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def join_message(
    messages: list[Message], message: Message, *, roles: Collection[str] = ASSISTANT
) -> None:
    """Append a message, or what it says to the one before it where both are one turn.

    Args:
        roles: Whose messages in a row are one turn.
    """
    last = messages[-1] if messages else {}
    if message["role"] != last.get("role") or message["role"] not in roles:
        messages.append(message)
        return
    joined = {**last}
    for name in ("content", "reasoning_content"):
        texts = [text for each in (last, message) if (text := each.get(name))]
        if texts:
            joined[name] = "\n\n".join(texts)
    if calls := [*last.get("tool_calls", ()), *message.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    messages[-1] = joined
