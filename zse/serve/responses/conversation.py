"""From a request of the Responses API to a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.serve.conversation import Conversation
from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.responses.tools import chosen_tools, offered_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.responses.protocol import InputTokensRequest, TextFormat
    from zse.serve.state import LoadedModel
    from zse.serve.transcript import Message
    from zse.text.grammar.spec import GrammarSpec


def conversation_of(body: InputTokensRequest, messages: Sequence[Message]) -> Conversation:
    """Return what a request asks to be answered.

    Args:
        body: Its types and ranges are checked.
        messages: What was said before, and what the request's items say.

    Raises:
        BadRequestError: The tools, the choice among them or the form have the wrong shape.
        GrammarError: The form of the answer is damaged or too large.
    """
    # They are of this request alone: what follows it brings its own.
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    whole = [*instructions, *messages]
    if not whole:
        raise BadRequestError("'input' holds no items, expected 1 or more.", param="input")
    choice, tools = chosen_tools(body.tool_choice, offered_tools(body.tools))
    return Conversation(
        messages=whole,
        tools=tools,
        choice=choice,
        parallel_calls=body.parallel_tool_calls is not False,
        form=_form_of(body.text.format if body.text else None),
        effort=_effort_of(body),
    )


def without_effect(body: InputTokensRequest, model: LoadedModel) -> list[str]:
    """Name nested fields that this model can do nothing with."""
    effort = _effort_of(body)
    is_strict = any(tool.get("strict") for tool in body.tools or ())
    is_free = body.tool_choice in (None, "auto")
    names = {
        "reasoning.effort": bool(effort) and not model.dialect.thinking.variables(effort or ""),
        "tools[].strict": is_strict and is_free and not model.dialect.keeps_schemas,
    }
    return [name for name, is_there in names.items() if is_there]


def _effort_of(body: InputTokensRequest) -> str | None:
    effort = body.reasoning.effort if body.reasoning else None
    return "xhigh" if effort == "max" else effort


def _form_of(asked: TextFormat | None) -> GrammarSpec | None:
    if asked is None or asked.type == "text":
        return None
    from zse.text.grammar.spec import GrammarError, json_object, json_schema

    where = "text.format.schema"
    if asked.type == "json_object":
        return replace(json_object(), param="text.format")
    for name in ("name", "schema_"):
        if getattr(asked, name) is None:
            raise MissingParameterError(f"text.format.{name.strip('_')}")
    try:
        return replace(json_schema(asked.schema_ or {}, strict=bool(asked.strict)), param=where)
    except GrammarError as error:
        error.param = where
        raise
