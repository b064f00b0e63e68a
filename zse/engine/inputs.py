"""What callers pass: prompts, and conversations, read into messages that a template can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from zse.errors import InvalidParameterError

Prompt: TypeAlias = str | list[int]
"""A text, or its token ids."""
Message: TypeAlias = Mapping[str, Any]
"""``role``, ``content``, and what else the model's template reads."""
Conversation: TypeAlias = str | Sequence[Message]
"""Messages in order; a text stands for one message of the user."""

_HINT = 'A message is {"role": "user", "content": "..."}; a text stands for one such message.'


def list_of_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts, one or many; a list of numbers is one.

    Raises:
        InvalidParameterError: Something in it is no prompt.
    """
    if isinstance(prompts, str):
        return [prompts]
    if prompts and _is_token_ids(prompts):
        return [cast("list[int]", prompts)]
    if not isinstance(prompts, Sequence):
        raise _no_prompt(prompts)
    for prompt in prompts:
        if not isinstance(prompt, str) and not _is_token_ids(prompt):
            raise _no_prompt(prompt)
    return cast("list[Prompt]", list(prompts))


def _is_token_ids(value: object) -> bool:
    return _is_list(value) and all(
        isinstance(item, int) for item in cast("Sequence[object]", value)
    )


def _no_prompt(value: object) -> InvalidParameterError:
    return InvalidParameterError(
        f"a prompt is {repr(value)[:60]}, expected a text or a list of token ids",
        param="prompts",
        hint="Messages with a role and a content are for chat().",
    )


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
