"""What an MCP server lists, as tools of ours: names that fit OpenAI's pattern, within bounds."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

from zse.tools.registry import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

MOST_TOOLS = 128
MOST_SCHEMA_CHARACTERS = 32_768
MOST_DESCRIPTION_CHARACTERS = 4_096
_MOST_NAME_CHARACTERS = 64
_MOST_ERROR_CHARACTERS = 2_000
_LOG = logging.getLogger("zse.serve.mcp")


class McpTool:
    """A tool of another program; its schema is its server's, and so is the check of arguments.

    Args:
        call: Runs it with an object; raises ``ToolError``.
    """

    def __init__(
        self,
        name: str,
        description: str,
        parameters: dict[str, Any],
        call: Callable[[dict[str, Any]], object],
    ) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self._call = call

    def call(self, arguments: object) -> object:
        """Run it.

        Raises:
            ToolError: The arguments are no object, or its server says that it failed.
        """
        if not isinstance(arguments, dict):
            raise ToolError("the arguments are no JSON object")
        return self._call(arguments)


def offers_of(
    server: str,
    listed: Iterable[ListedTool],
    call: Callable[[str, dict[str, Any]], object],
) -> list[McpTool]:
    """Return the tools that a server lists; what is over the bounds is left out, and logged.

    Args:
        call: Given the name that the server knows, and the arguments.
    """
    tools: dict[str, McpTool] = {}
    for one in listed:
        name = _name_of(server, one.name)
        problem = _problem(one, is_taken=name in tools)
        if len(tools) >= MOST_TOOLS:
            problem = f"there are more than {MOST_TOOLS}"
        if problem:
            _LOG.warning(
                "a tool is left out: %s", problem, extra={"server": server, "tool": one.name[:80]}
            )
            continue
        description = (one.description or one.title or "")[:MOST_DESCRIPTION_CHARACTERS]
        tools[name] = McpTool(name, description, one.input_schema, _calling(call, one.name))
    return list(tools.values())


def told_of(result: CallToolResult) -> str:
    """Return what a model is told of a result.

    Raises:
        ToolError: The server says that the call failed.
    """
    texts = [_text_of(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(texts)
    if result.is_error:
        raise ToolError(text[:_MOST_ERROR_CHARACTERS] or "the tool failed")
    return text


def _name_of(server: str, name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}_{name}")[:_MOST_NAME_CHARACTERS]


def _problem(tool: ListedTool, *, is_taken: bool) -> str:
    if is_taken:
        return "another has its name"
    if tool.input_schema.get("type") != "object":
        return "its schema is none of an object"
    try:
        size = len(json.dumps(tool.input_schema))
    except (ValueError, RecursionError):
        return "its schema is no JSON"
    return "its schema is too large" if size > MOST_SCHEMA_CHARACTERS else ""


def _calling(
    call: Callable[[str, dict[str, Any]], object], name: str
) -> Callable[[dict[str, Any]], object]:
    return lambda arguments: call(name, arguments)


def _text_of(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    return f"[{block.type}, which is no text]"
