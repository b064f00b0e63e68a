"""The tools of a chat request, and whether they must be called: checked, and in neutral words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from zse.serve.conversation import OfferedTool, ToolChoice
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import convert
from zse.serve.openai.protocol import MAX_TOOLS, ToolChoiceFields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.serve.openai.protocol import ChatRequest

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_tools(request: ChatRequest) -> None:
    """Refuse tools that cannot be offered, and a choice among them that cannot be made.

    Raises:
        BadRequestError: ``param`` names the field.
    """
    tools = request.tools
    if tools is not None:
        if not 0 < len(tools) <= MAX_TOOLS:
            raise BadRequestError(
                f"Invalid 'tools': it holds {len(tools)} tools, expected 1 to {MAX_TOOLS}.",
                param="tools",
                code="array_above_max_length" if tools else "empty_array",
            )
        names = [tool.function.name for tool in tools]
        for index, name in enumerate(names):
            check_name(name, f"tools[{index}].function.name")
        check_distinct(names, "tools[{}].function.name")
    if request.tool_choice not in (None, "none") and not tools:
        raise BadRequestError(
            "'tool_choice' is only allowed when 'tools' are given.", param="tool_choice"
        )
    choice_of(request)


def check_name(name: str, param: str) -> None:
    """Refuse a name of a function that OpenAI refuses.

    Raises:
        BadRequestError: It is one.
    """
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"Invalid '{param}': {name[:80]!r} does not match the pattern "
            "'^[a-zA-Z0-9_-]{1,64}$'.",
            param=param,
            code="invalid_value",
        )


def check_distinct(names: Iterable[str], param: str) -> None:
    """Refuse two tools of one name: a call of it could mean either.

    Args:
        names: Those of the tools, in the order of the request.
        param: The field of a name, with ``{}`` for the tool's place.

    Raises:
        BadRequestError: It names the second of them.
    """
    seen = set()
    for index, name in enumerate(names):
        if name in seen:
            where = param.format(index)
            raise BadRequestError(f"Invalid '{where}': two tools are called {name!r}.", param=where)
        seen.add(name)


def choice_of(request: ChatRequest) -> ToolChoice:
    """Return whether an answer must call.

    Raises:
        BadRequestError: It is no choice, or of a tool that is not there.
    """
    asked = request.tool_choice
    if asked is None or asked == "auto":
        return ToolChoice()
    if asked == "none":
        return ToolChoice(mode="none")
    if asked == "required":
        return ToolChoice(mode="required")
    if isinstance(asked, str):
        raise BadRequestError(
            "'tool_choice' is none of 'none', 'auto', 'required' or a function.",
            param="tool_choice",
        )
    choice = convert(asked, ToolChoiceFields, where="tool_choice")
    if choice.type == "function" and choice.function is not None:
        _require([choice.function.name], request)
        return ToolChoice(mode="named", name=choice.function.name)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        return ToolChoice(mode=choice.allowed_tools.mode)
    raise BadRequestError(
        f"'tool_choice' of type '{choice.type}' lacks the field '{choice.type}'.",
        param="tool_choice",
    )


def offered_tools(request: ChatRequest) -> tuple[OfferedTool, ...]:
    """Return the tools that may be called."""
    tools = request.tools or ()
    asked: Any = request.tool_choice
    if isinstance(asked, dict) and asked.get("type") == "allowed_tools":
        choice = convert(asked, ToolChoiceFields, where="tool_choice")
        names = [tool.function.name for tool in choice.allowed_tools.tools]  # type: ignore[union-attr]
        _require(names, request)
        tools = [tool for tool in tools if tool.function.name in names]
    return tuple(
        OfferedTool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters,
            is_strict=bool(tool.function.strict),
        )
        for tool in tools
    )


def _require(names: Iterable[str], request: ChatRequest) -> None:
    known = {tool.function.name for tool in request.tools or ()}
    for name in names:
        if name not in known:
            raise BadRequestError(
                f"Invalid 'tool_choice': there is no tool {name[:80]!r} in 'tools'.",
                param="tool_choice",
            )
