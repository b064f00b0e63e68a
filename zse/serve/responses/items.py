"""The items of a request: read, given ids, and made into the messages that templates know.

An assistant's turn is several items here and one message there.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zse.serve.http.errors import BadRequestError, UnknownIdError
from zse.serve.http.fields import convert, kind_of_place, unread_fields
from zse.serve.transcript import call_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.serve.transcript import Transcript

Item = dict[str, Any]

_READ_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "summary_text"})
_READ_PARTS |= {"reasoning_text"}
_SEEN = {"input_image": "images", "input_file": "files", "input_audio": "sounds"}


class ContentPart(msgspec.Struct, kw_only=True):
    """Part of what a message, a result or a thought says."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class _Item(msgspec.Struct, kw_only=True):
    """What all items have."""

    type: str | None = None
    id: str | None = None
    status: str | None = None


class MessageItem(_Item, kw_only=True):
    """A message of anybody."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    phase: str | None = None


class CallItem(_Item, kw_only=True):
    """A call that the assistant made earlier."""

    call_id: str
    name: str
    arguments: str


class ResultItem(_Item, kw_only=True):
    """What a call came to."""

    call_id: str
    output: str | list[ContentPart]


class ReasoningItem(_Item, kw_only=True):
    """What the assistant thought earlier."""

    summary: list[ContentPart] = []
    content: list[ContentPart] | None = None
    encrypted_content: str | None = None


_KINDS: dict[str, tuple[type[_Item], str]] = {
    "message": (MessageItem, "msg"),
    "function_call": (CallItem, "fc"),
    "function_call_output": (ResultItem, "fco"),
    "reasoning": (ReasoningItem, "rs"),
}
"""Kinds of items: what they are read into, and what their ids begin with."""


def new_id(prefix: str) -> str:
    """Return a fresh identifier such as ``resp_…``."""
    return f"{prefix}_{uuid.uuid4().hex}"


def input_items(given: str | list[Item] | None, find: Callable[[str], Item]) -> list[Item]:
    """Return a request's items, each with its type and an id.

    Args:
        given: A text is one message of the user.
        find: Returns the item that a reference names, or raises UnknownIdError.

    Raises:
        BadRequestError: An item is of a kind that nobody here reads.
    """
    if given is None or isinstance(given, str):
        text = {"type": "input_text", "text": given}
        message = {"type": "message", "role": "user", "content": [text]}
        return [] if given is None else [{"id": new_id("msg"), **message}]
    items = []
    for index, item in enumerate(given):
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "item_reference":
            items.append(_found(item, find, f"input[{index}]"))
            continue
        if not isinstance(kind, str) or kind not in _KINDS:
            raise BadRequestError(
                f"'input[{index}]' is of type '{str(kind)[:40]}'; messages, reasoning, function "
                "calls and their outputs are read.",
                param=f"input[{index}].type",
                code="unsupported_content",
            )
        items.append({**item, "type": kind, "id": item.get("id") or new_id(_KINDS[kind][1])})
    return items


def _found(item: Item, find: Callable[[str], Item], where: str) -> Item:
    try:
        return find(str(item.get("id")))
    except UnknownIdError as error:
        error.param = f"{where}.id"
        raise


def add_items(transcript: Transcript, items: Sequence[Item]) -> list[str]:
    """Add what items say to a conversation; return the fields that nobody reads.

    Args:
        transcript: Takes what they say.
        items: With types, of a request or an answer.

    Raises:
        BadRequestError: An item has the wrong shape, or holds what no model here reads.
    """
    ignored: dict[str, None] = {}
    for index, item in enumerate(items):
        where = f"input[{index}]"
        read = convert(item, _KINDS[item["type"]][0], where=where)
        places = (place for place, _ in unread_fields(item, read, where))
        ignored |= dict.fromkeys(map(kind_of_place, places))
        _add(transcript, read, where)
    return list(ignored)


def _add(transcript: Transcript, item: _Item, where: str) -> None:
    if isinstance(item, MessageItem):
        role = "system" if item.role == "developer" else item.role
        transcript.add(role, _text_of(item.content, f"{where}.content"))
    elif isinstance(item, CallItem):
        transcript.add("assistant", call=call_of(item.call_id, item.name, item.arguments))
    elif isinstance(item, ResultItem):
        text = _text_of(item.output, f"{where}.output")
        transcript.add("tool", text, tool_call_id=item.call_id)
    elif isinstance(item, ReasoningItem) and (item.content or item.summary):
        # One that is sealed was sealed by another server, and says nothing here.
        thought = _text_of(item.content or item.summary, f"{where}.content")
        transcript.add("assistant", thought=thought)


def _text_of(content: str | list[ContentPart], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in _READ_PARTS or text is None:
            what = _SEEN.get(part.type)
            reason = f"{what} are not read here: no model that is served takes them"
            if what is None:
                reason = f"it is of type '{part.type[:40]}'; only text is read"
            raise BadRequestError(
                f"Invalid value for '{where}[{index}]': {reason}.",
                param=f"{where}[{index}]",
                code="unsupported_content",
            )
        texts.append(text)
    return "\n".join(texts)
