"""From a request of the Responses API to a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.serve.conversation import Conversation
from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.responses.items import add_items
from zse.serve.responses.tools import chosen_tools, offered_tools
from zse.serve.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.responses.items import Item
    from zse.serve.responses.protocol import InputTokensRequest, TextFormat
    from zse.serve.state import LoadedModel
    from zse.text.grammar.spec import GrammarSpec


def conversation_of(
    body: InputTokensRequest, before: Sequence[Item], items: Sequence[Item], ignored: list[str]
) -> Conversation:
    """Return what a request asks to be answered.

    Args:
        body: Its types and ranges are checked.
        before: What was said in the responses that it follows.
        items: Its own.
        ignored: Takes the names of fields of its items that nobody reads.

    Raises:
        BadRequestError: An item, the tools, the choice among them or the form have the wrong shape.
        GrammarError: The form of the answer is damaged or too large.
    """
    # Many templates know one system, at the beginning.
    transcript = Transcript(joined_roles=("system", "assistant"))
    if body.instructions:
        # They are of this request alone: what follows it brings its own.
        transcript.add("system", body.instructions)
    add_items(transcript, before)
    ignored.extend(add_items(transcript, items))
    messages = transcript.messages()
    if not messages:
        raise BadRequestError("'input' holds no items, expected 1 or more.", param="input")
    choice, tools = chosen_tools(body.tool_choice, offered_tools(body.tools))
    return Conversation(
        messages=messages,
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
