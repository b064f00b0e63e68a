"""What callers pass as a conversation, read into messages that a chat template can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from zse.errors import InvalidParameterError

Message: TypeAlias = Mapping[str, Any]
"""``role``, ``content``, and what else the model's template reads."""
Conversation: TypeAlias = str | Sequence[Message]
"""Messages in order; a text stands for one message of the user."""

_HINT = 'A message is {"role": "user", "content": "..."}; a text stands for one such message.'


def is_one_conversation(messages: Conversation | Sequence[Conversation]) -> bool:
    """Whether this is one conversation, and not a list of them.

    Raises:
        InvalidParameterError: It is neither.
    """
    if isinstance(messages, str):
        return True
    if not _is_list(messages):
        raise _refusal(f"messages is a {_kind(messages)}, expected a text or a list")
    kinds = {isinstance(item, Mapping) for item in messages}
    if len(kinds) == 2:
        raise _refusal("messages holds both messages and other things")
    return kinds == {True}


def messages_of(conversation: Conversation) -> list[Message]:
    """Return the messages of one conversation.

    Raises:
        InvalidParameterError: It is empty, or something in it is no message.
    """
    if isinstance(conversation, str):
        return [{"role": "user", "content": conversation}]
    if not _is_list(conversation):
        raise _refusal(f"a conversation is a {_kind(conversation)}, expected a text or a list")
    if not conversation:
        raise _refusal("a conversation has no messages, expected 1 or more")
    for place, message in enumerate(conversation):
        _check_message(f"message {place}", message)
    return list(conversation)


def _check_message(where: str, message: object) -> None:
    if not isinstance(message, Mapping):
        raise _refusal(f"{where} is a {_kind(message)}, expected a mapping")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise _refusal(f"{where} has the role {role!r}, expected a text such as 'user'")
    if content is None and message.keys() - {"role", "content"}:  # an answer that calls tools
        return
    if not isinstance(content, str) and not _is_list(content):
        raise _refusal(f"the content of {where} is a {_kind(content)}, expected a text")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _kind(value: object) -> str:
    return type(value).__name__


def _refusal(message: str) -> InvalidParameterError:
    return InvalidParameterError(message, param="messages", hint=_HINT)
