"""What callers pass as prompts, read into a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from zse.errors import InvalidParameterError

Prompt: TypeAlias = str | list[int]
"""A text, or its token ids."""


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
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(item, int) for item in cast("Sequence[object]", value))


def _no_prompt(value: object) -> InvalidParameterError:
    return InvalidParameterError(
        f"a prompt is {repr(value)[:60]}, expected a text or a list of token ids",
        param="prompts",
        hint="Messages with a role and a content are for chat().",
    )
