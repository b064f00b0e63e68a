"""From Anthropic's messages to a conversation.

A message of theirs may hold what takes several of a template's: results of tools come before the
text that follows them. Turns of the same role in a row are one turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.anthropic.protocol import Block, CountRequest, InputMessage
    from zse.serve.anthropic.protocol import ToolChoice as AskedChoice
    from zse.text.grammar.spec import GrammarSpec

_MODES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}
_BILLING = "x-anthropic-billing-header:"
"""Begins a system block of a coding agent that is no text for the model, and new in each request:
with it at the front, no two prompts would share a prefix."""


def conversation_of(body: CountRequest) -> Conversation:
    """Return what a checked request asks to be answered.

    Raises:
        BadRequestError: A message holds what its role cannot say, or what no model here reads.
        GrammarError: The form of the answer is damaged or too large.
    """
    messages: list[dict[str, Any]] = []
    if system := _system_text(body.system):
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(body.messages):
        for each in _template_messages(message, f"messages[{index}]"):
            _add(messages, each)
    if messages[-1]["role"] == "assistant":
        raise BadRequestError(
            "messages: the last one is the assistant's, expected the user's: answers are not "
            "continued here.",
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
        effort="medium" if shows_thinking(body) else "none",
    )


def shows_thinking(body: CountRequest) -> bool:
    """Whether the model is to think, and the client to see it."""
    return body.thinking is not None and body.thinking.type != "disabled"


def _form_of(body: CountRequest) -> GrammarSpec | None:
    if body.output_config is None or body.output_config.format is None:
        return None
    from zse.text.grammar.spec import GrammarError, json_schema

    where = "output_config.format.schema"
    try:
        return replace(json_schema(body.output_config.format.schema_), param=where)
    except GrammarError as error:
        error.param = where
        raise


def _choice_of(choice: AskedChoice | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    return ToolChoice(mode=_MODES[choice.type], name=choice.name or "")  # type: ignore[arg-type]


def _system_text(system: str | list[TextBlock] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "\n\n".join(block.text for block in system if not block.text.startswith(_BILLING))


def _add(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Append a message, or its text to one of the same role before it."""
    last = messages[-1] if messages else {}
    is_same = message["role"] == last.get("role") and message["role"] in ("user", "assistant")
    if not is_same:
        messages.append(message)
        return
    for name in ("content", "reasoning_content"):
        texts = [text for each in (last, message) if (text := each.get(name))]
        if texts:
            last[name] = "\n\n".join(texts)
    if calls := [*last.get("tool_calls", ()), *message.get("tool_calls", ())]:
        last["tool_calls"] = calls


def _template_messages(message: InputMessage, where: str) -> list[dict[str, Any]]:
    content = message.content
    blocks: Sequence[Block] = [TextBlock(text=content)] if isinstance(content, str) else content
    if message.role == "assistant":
        return [_assistant_message(blocks, where)]
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            _add_text(messages, message.role, block.text)
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            messages.append(_result_message(block, f"{where}.content[{index}]"))
        else:
            raise _misplaced(block, message.role, f"{where}.content[{index}]")
    return messages or [{"role": message.role, "content": ""}]


def _add_text(messages: list[dict[str, Any]], role: str, text: str) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += "\n" + text
    else:
        messages.append({"role": role, "content": text})


def _assistant_message(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif not isinstance(block, RedactedThinkingBlock):
            raise _misplaced(block, "assistant", f"{where}.content[{index}]")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _result_message(block: ToolResultBlock, where: str) -> dict[str, Any]:
    content = block.content or ""
    if not isinstance(content, str):
        texts = []
        for index, part in enumerate(content):
            if not isinstance(part, TextBlock):
                raise _misplaced(part, "user", f"{where}.content[{index}]")
            texts.append(part.text)
        content = "\n".join(texts)
    # Templates have no other place for it.
    text = f"Error: {content}" if block.is_error else content
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _misplaced(block: Block, role: str, where: str) -> BadRequestError:
    if isinstance(block, ImageBlock):
        text = "images are not read here: no model that is served sees"
    elif isinstance(block, DocumentBlock):
        text = "documents are not read here: send their text"
    else:
        kind = type(block).__struct_config__.tag
        text = f"a block of type '{kind}' has no place in a message of the {role}"
    return BadRequestError(f"{where}: {text}.", param=where, code="unsupported_content")
