"""From Anthropic's messages to a conversation.

A message of theirs may hold what takes several of a template's: results of tools come before the
text that follows them. Turns of the same role in a row are one turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.serve.anthropic.protocol import (
    DocumentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from zse.serve.conversation import Conversation, OfferedTool, ToolChoice
from zse.serve.http.errors import BadRequestError
from zse.serve.transcript import Transcript, call_of

if TYPE_CHECKING:
    from zse.serve.anthropic.protocol import Block, CountTokensRequest, InputMessage
    from zse.serve.anthropic.protocol import ToolChoice as AskedChoice
    from zse.serve.state import LoadedModel
    from zse.text.grammar.spec import GrammarSpec

_MODES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}
_EFFORTS = {"max": "xhigh"}
"""The highest that templates are asked for."""
_TURNS = frozenset({"system", "user", "assistant"})
_BILLING = "x-anthropic-billing-header:"
"""Begins a system block of a coding agent that is no text for the model, and new in each request:
with it at the front, no two prompts would share a prefix."""


def conversation_of(body: CountTokensRequest) -> Conversation:
    """Return what a checked request asks to be answered.

    Raises:
        BadRequestError: A message holds what its role cannot say, or what no model here reads.
        GrammarError: The form of the answer is damaged or too large.
    """
    transcript = Transcript(joined_roles=_TURNS)
    if system := _system_text(body.system):
        transcript.add("system", system)
    for index, message in enumerate(body.messages):
        _add(transcript, message, f"messages[{index}]")
    messages = transcript.messages()
    is_continued = messages[-1]["role"] == "assistant"
    if is_continued and messages[-1].get("tool_calls"):
        raise BadRequestError(
            "messages: the last one holds calls of tools, expected their results behind it.",
            param="messages",
        )
    choice = body.tool_choice
    return Conversation(
        messages=messages,
        tools=tuple(
            OfferedTool(
                name=tool.name,
                description=tool.description or "",
                parameters=tool.input_schema,
                is_strict=bool(tool.strict),
            )
            for tool in body.tools or ()
        ),
        choice=_choice_of(choice),
        parallel_calls=not (choice and choice.disable_parallel_tool_use),
        form=_form_of(body),
        effort=_effort_of(body),
        end="continued" if is_continued else "answer",
    )


def shows_thinking(body: CountTokensRequest) -> bool:
    """Whether the client is to see what the model thinks."""
    thinking = body.thinking
    return thinking is not None and thinking.type != "disabled" and thinking.display != "omitted"


def _is_thinking(body: CountTokensRequest) -> bool:
    return body.thinking is not None and body.thinking.type != "disabled"


def _form_of(body: CountTokensRequest) -> GrammarSpec | None:
    if body.output_config is None or body.output_config.format is None:
        return None
    from zse.text.grammar.spec import GrammarError, json_schema

    where = "output_config.format.schema"
    try:
        return replace(json_schema(body.output_config.format.schema_), param=where)
    except GrammarError as error:
        error.param = where
        raise


def _effort_of(body: CountTokensRequest) -> str:
    if not _is_thinking(body):
        return "none"
    effort = body.output_config.effort if body.output_config else None
    return _EFFORTS.get(effort or "medium", effort or "medium")


def without_effect(body: CountTokensRequest, model: LoadedModel) -> list[str]:
    """Name nested fields that this model can do nothing with."""
    output = body.output_config
    is_strict = any(tool.strict for tool in body.tools or ())
    is_free = body.tool_choice is None or body.tool_choice.type == "auto"
    names = {
        "output_config.effort": output is not None
        and output.effort is not None
        and not (_is_thinking(body) and model.dialect.thinking.has_effort),
        "tools[].strict": is_strict and is_free and not model.dialect.keeps_schemas,
    }
    return [name for name, is_there in names.items() if is_there]


def _choice_of(choice: AskedChoice | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    return ToolChoice(mode=_MODES[choice.type], name=choice.name or "")  # type: ignore[arg-type]


def _system_text(system: str | list[TextBlock] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "\n\n".join(block.text for block in system if not block.text.startswith(_BILLING))


def _add(transcript: Transcript, message: InputMessage, where: str) -> None:
    if isinstance(message.content, str):
        transcript.add(message.role, message.content)
        return
    for index, block in enumerate(message.content):
        _add_block(transcript, message.role, block, f"{where}.content[{index}]")


def _add_block(transcript: Transcript, role: str, block: Block, where: str) -> None:
    if isinstance(block, TextBlock):
        transcript.add(role, block.text)
    elif isinstance(block, ToolResultBlock) and role == "user":
        text = _result_text(block, where)
        transcript.add("tool", text, tool_call_id=block.tool_use_id)
    elif role == "assistant" and isinstance(block, ThinkingBlock):
        transcript.add(role, thought=block.thinking)
    elif role == "assistant" and isinstance(block, ToolUseBlock):
        transcript.add(role, call=call_of(block.id, block.name, block.input))
    elif not (role == "assistant" and isinstance(block, RedactedThinkingBlock)):
        raise _misplaced(block, role, where)


def _result_text(block: ToolResultBlock, where: str) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        for index, part in enumerate(content):
            if not isinstance(part, TextBlock):
                raise _misplaced(part, "user", f"{where}.content[{index}]")
        content = "\n".join(part.text for part in content if isinstance(part, TextBlock))
    # Templates have no other place for it.
    return f"Error: {content}" if block.is_error else content


def _misplaced(block: Block, role: str, where: str) -> BadRequestError:
    if isinstance(block, ImageBlock):
        text = "images are not read here: no model that is served sees"
    elif isinstance(block, DocumentBlock):
        text = "documents are not read here: send their text"
    else:
        kind = type(block).__struct_config__.tag
        text = f"a block of type '{kind}' has no place in a message of the {role}"
    return BadRequestError(f"{where}: {text}.", param=where, code="unsupported_content")
