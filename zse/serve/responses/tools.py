"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zse.serve.conversation import OfferedTool, ToolChoice
from zse.serve.http.errors import BadRequestError, UnsupportedParameterError
from zse.serve.http.fields import convert
from zse.serve.openai.tools import check_distinct, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.serve.conversation import ChoiceMode

_MODES: dict[str, ChoiceMode] = {"none": "none", "auto": "auto", "required": "required"}


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that the client runs; ``parameters`` is a JSON schema."""

    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class NamedChoice(msgspec.Struct, kw_only=True, tag="function"):
    """The one function to call."""

    name: str


class AllowedChoice(msgspec.Struct, kw_only=True, tag="allowed_tools"):
    """The functions that may be called, of those that are offered."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


def offered_tools(given: Sequence[dict[str, Any]] | None) -> tuple[OfferedTool, ...]:
    """Return the functions that a request offers.

    Raises:
        UnsupportedParameterError: A tool is one that the server would run.
        BadRequestError: A function has the wrong shape, or the name of another.
    """
    tools = []
    for index, one in enumerate(given or ()):
        where = f"tools[{index}]"
        if one.get("type") != "function":
            raise UnsupportedParameterError(
                f"{where}.type",
                f"No '{str(one.get('type'))[:40]}' is run here: offer a function, and run it "
                "yourself.",
            )
        tool = convert(one, FunctionTool, where=where)
        check_name(tool.name, f"{where}.name")
        tools.append(
            OfferedTool(
                name=tool.name,
                description=tool.description or "",
                parameters=tool.parameters,
                is_strict=bool(tool.strict),
            )
        )
    check_distinct([tool.name for tool in tools], "tools[{}].name")
    return tuple(tools)


def chosen_tools(
    choice: str | dict[str, Any] | None, tools: tuple[OfferedTool, ...]
) -> tuple[ToolChoice, tuple[OfferedTool, ...]]:
    """Return whether the model must call, and the tools that it sees.

    Raises:
        UnsupportedParameterError: The choice is of a tool that the server would run.
        BadRequestError: It is of the wrong shape, or of no tool that is offered.
    """
    if choice is None or choice == "none":
        return ToolChoice(mode="auto" if choice is None else "none"), tools
    if not tools:
        raise _bad_choice("'tool_choice' is only allowed when 'tools' are given.")
    if isinstance(choice, str):
        if choice not in _MODES:
            raise _bad_choice(f"'tool_choice' is '{choice[:40]}', expected none, auto or required.")
        return ToolChoice(mode=_MODES[choice]), tools
    by_name = {tool.name: tool for tool in tools}
    if choice.get("type") == "function":
        name = convert(choice, NamedChoice, where="tool_choice").name
        _check_names([name], by_name)
        return ToolChoice(mode="named", name=name), tools
    if choice.get("type") == "allowed_tools":
        allowed = convert(choice, AllowedChoice, where="tool_choice")
        names = [str(tool.get("name")) for tool in allowed.tools]
        _check_names(names, by_name)
        return ToolChoice(mode=allowed.mode), tuple(by_name[name] for name in names)
    raise UnsupportedParameterError("tool_choice.type", "Choose a function.")


def _check_names(names: Sequence[str], by_name: Mapping[str, OfferedTool]) -> None:
    missing = next((name for name in names if name not in by_name), None)
    if missing is not None:
        raise _bad_choice(f"'tool_choice' names '{missing[:64]}', which is not in 'tools'.")
    if not names:
        raise _bad_choice("'tool_choice' allows no tools: send 'none'.")


def _bad_choice(text: str) -> BadRequestError:
    return BadRequestError(text, param="tool_choice")
