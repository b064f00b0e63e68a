"""A conversation to take along: as JSON with every branch, as Markdown the last one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from zse.serve.ui.conversations import branch

if TYPE_CHECKING:
    from zse.serve.ui.conversations import Row

_NAMES = {"user": "You", "assistant": "Assistant"}


def as_json(conversation: Row, messages: list[Row]) -> dict[str, Any]:
    """Return all that is kept of a conversation, but for whose it is."""
    own = {name: value for name, value in conversation.items() if name != "owner"}
    hidden = ("conversation", "saved")
    shown = [{k: v for k, v in message.items() if k not in hidden} for message in messages]
    return {"version": 1, "conversation": own, "messages": shown}


def as_markdown(conversation: Row, messages: list[Row]) -> str:
    """Return the branch that was written on last."""
    title = " ".join(conversation["title"].split()) or "Conversation"
    parts = [f"# {title}"]
    if conversation["system"]:
        parts.append(f"**System**\n\n{conversation['system']}")
    for message in branch(messages, messages[-1]["id"] if messages else None):
        parts.append(f"**{_NAMES[message['role']]}**\n\n{message['content']}")
        parts += [f"[{one['number']}] {_place(one)}" for one in message["sources"]]
        parts += [_call(call) for call in message["calls"]]
    return "\n\n".join(parts) + "\n"


def _call(call: dict[str, str]) -> str:
    """Return a call, and what came of it where the server ran it."""
    text = f"{call['name']}({call['arguments']})"
    if "output" in call:
        text += f"\n-> {call['output']}"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}json\n{text}\n{fence}"


def _place(source: Row) -> str:
    """Return where an excerpt stands, on one line."""
    page = f", page {source['page']}" if source["page"] else ""
    heading = f": {source['heading']}" if source["heading"] else ""
    return " ".join(f"{source['name']}{page}{heading}".split())
