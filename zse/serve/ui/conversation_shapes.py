"""What the routes of conversations are asked and answer."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.http.json_body import read_mapping

MAX_TEXT = 1_000_000
MAX_TOOLS_BYTES = 256 << 10
"""Of all definitions of tools of a conversation, as JSON."""


def _as_sent(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return definitions that can be kept, and sent as JSON whenever they are asked for.

    Raises:
        ValueError: They are too long, or hold what no JSON in UTF-8 says.
        BadRequestError: They are nested too deeply.
    """
    try:
        text = json.dumps(tools, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text holds half a character") from None
    if len(text) > MAX_TOOLS_BYTES:
        raise ValueError(f"longer than {MAX_TOOLS_BYTES:,} bytes")
    read_mapping(b'{"tools": %b}' % text)
    return tools


Tools = Annotated[list[dict[str, Any]], Field(max_length=64), AfterValidator(_as_sent)]
Title = Annotated[str, Field(max_length=200)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Identifier = Annotated[str, Field(max_length=64)]


class ChatSettings(AskedShape):
    """How answers are asked for; null is the model's own."""

    model: Annotated[str, Field(max_length=256)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    tools: Tools | None = None
    """Definitions of tools that the model may call, as in a chat completion."""
    documents: bool = False
    """Whether excerpts of the key's documents go with the last question."""
    server_tools: bool = False
    """Whether the model may call the tools that this server runs."""


class ConversationAsked(AskedShape):
    """A conversation to begin."""

    title: Title = ""
    system: Text = ""
    """What the model is told before all else."""
    settings: ChatSettings = ChatSettings()


class ConversationChange(AskedShape):
    title: Title | None = None
    system: Text | None = None
    settings: ChatSettings | None = None


class MessageAsked(AskedShape):
    """A message to add."""

    role: Literal["user", "assistant"]
    content: Text
    parent: Identifier | None = None
    """The message that it follows; null for a first one."""


class AnswerAsked(AskedShape):
    parent: Identifier
    """The message that is answered."""


class ConversationShown(Shape):
    id: str
    title: str
    system: str
    settings: dict[str, Any]
    created: float
    """Unix seconds."""
    updated: float


class ConversationList(Shape):
    conversations: list[ConversationShown]


class MessageShown(Shape):
    id: str
    parent: str | None
    role: str
    content: str
    reasoning: str
    calls: list[dict[str, str]]
    """``name`` and ``arguments``; of tools that the server ran, ``output``."""
    sources: list[dict[str, Any]]
    """Excerpts of documents that the model was given, as ``documents`` of a chat completion."""
    model: str
    status: Literal["writing", "done", "stopped", "failed", "interrupted"]
    error: str
    tokens: int
    """Written."""
    seconds: float
    """From the first token to the last."""
    created: float


class MessageList(Shape):
    messages: list[MessageShown]
