"""What clients of Anthropic's API send: msgspec structs, and what is refused or without effect."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from zse.serve.http.errors import BadRequestError, UnsupportedParameterError
from zse.serve.http.fields import Refused, WithoutEffect, check_range, read_fields
from zse.serve.openai.protocol import MAX_MESSAGES, MAX_STOPS, MAX_TOOLS
from zse.serve.openai.tools import check_distinct

CacheControl = dict[str, Any]
"""Marks where a prefix ends. Every prefix is cached here, whether or not it is marked."""


class TextBlock(msgspec.Struct, kw_only=True, tag="text"):
    """Text of anybody."""

    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class ImageBlock(msgspec.Struct, kw_only=True, tag="image"):
    """An image, which no model reads yet."""


class DocumentBlock(msgspec.Struct, kw_only=True, tag="document"):
    """A document, which is not read."""


class ThinkingBlock(msgspec.Struct, kw_only=True, tag="thinking"):
    """What the assistant thought earlier."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, kw_only=True, tag="redacted_thinking"):
    """What another server's assistant thought, in a form that only that server reads."""

    data: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag="tool_use"):
    """A call that the assistant made earlier."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(msgspec.Struct, kw_only=True, tag="tool_result"):
    """What a call came to."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class InputMessage(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the client runs; ``input_schema`` is a JSON schema."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Whether the model must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True, rename={"schema_": "schema"}):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    """How much effort, and which form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct, kw_only=True):
    """Who asks, in the client's words."""

    user_id: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""

    model: str
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: int
    metadata: Metadata | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
REFUSED: Refused = {
    "container": ((), "Nothing is run here: offer tools, and run them yourself."),
    "mcp_servers": (([],), "Offer the servers' tools in 'tools', and call them yourself."),
}
WITHOUT_EFFECT: WithoutEffect = {
    "service_tier": ("auto", "standard_only"),
    "inference_geo": (),
    "speed": ("standard",),
    "thinking.budget_tokens": (),
}


def read_messages(mapping: dict[str, Any]) -> tuple[MessagesRequest, tuple[str, ...]]:
    """Return a checked request and the names of its fields without effect.

    Raises:
        UnsupportedParameterError: A known field asks for something this server does not do.
        BadRequestError: A field has the wrong type, shape or range; ``param`` names it.
    """
    body, ignored = read_fields(
        mapping, MessagesRequest, refused=REFUSED, without_effect=WITHOUT_EFFECT
    )
    _check(body)
    if body.max_tokens < 1:
        raise BadRequestError(f"max_tokens: {body.max_tokens} is less than 1.", param="max_tokens")
    check_range("temperature", body.temperature, 0, 1)
    check_range("top_p", body.top_p, 0, 1)
    if len(body.stop_sequences or ()) > MAX_STOPS:
        raise BadRequestError(
            f"stop_sequences: more than {MAX_STOPS} texts.", param="stop_sequences"
        )
    return body, ignored


def read_count(mapping: dict[str, Any]) -> tuple[CountTokensRequest, tuple[str, ...]]:
    """As ``read_messages``, for what is only counted: fields of the former are ignored."""
    body, ignored = read_fields(
        mapping, CountTokensRequest, refused=REFUSED, without_effect=WITHOUT_EFFECT
    )
    _check(body)
    return body, ignored


def _check(body: CountTokensRequest) -> None:
    if not 0 < len(body.messages) <= MAX_MESSAGES:
        raise BadRequestError(
            f"messages: {len(body.messages)} messages, expected 1 to {MAX_MESSAGES}.",
            param="messages",
        )
    if len(body.tools or ()) > MAX_TOOLS:
        raise BadRequestError(f"tools: more than {MAX_TOOLS} tools.", param="tools")
    for index, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            raise UnsupportedParameterError(
                f"tools[{index}].type", f"No '{tool.type[:40]}' is run here: offer your own tool."
            )
        if not _NAME.fullmatch(tool.name):
            raise BadRequestError(
                f"tools[{index}].name: {tool.name[:80]!r} does not match '^{_NAME.pattern}$'.",
                param=f"tools[{index}].name",
            )
    check_distinct([tool.name for tool in body.tools or ()], "tools[{}].name")
    choice = body.tool_choice
    if choice is None or choice.type == "none":
        return
    names = {tool.name for tool in body.tools or ()}
    if not names:
        raise BadRequestError("tool_choice: there are no tools.", param="tool_choice")
    if choice.type == "tool" and choice.name not in names:
        raise BadRequestError(
            f"tool_choice.name: '{str(choice.name)[:64]}' is none of the tools.",
            param="tool_choice.name",
        )
