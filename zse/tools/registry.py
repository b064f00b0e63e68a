"""The registry: tools by name, their JSON schemas, and the one place where any of them is run.

A tool takes a struct and returns what JSON can hold. Its schema is made of the struct, and what a
model writes is checked against it before the tool sees anything.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from zse.errors import UsageError, ZSEError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOST_ARGUMENTS_CHARACTERS = 65_536
_SHOWN_CHARACTERS = 300


class ToolError(ZSEError):
    """A tool could not do what it was asked; the model is told the message."""


@record
class ToolLimits:
    """What one call may take."""

    timeout_seconds: float = 10.0
    output_characters: int = 16_384


@record
class ToolResult:
    """What came of a call."""

    name: str
    output: str
    """JSON, or the message of an error; cut at the limit."""
    is_error: bool
    seconds: float


class AnyTool(Protocol):
    """What a registry holds: a ``Tool``, or one of another program."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]: ...

    def call(self, arguments: object) -> object:
        """Run with what a model wrote.

        Raises:
            ToolError: The arguments do not fit, or the tool could not do it.
        """


class Tool:
    """One tool.

    Args:
        name: As models call it: letters, digits, ``_`` and ``-``.
        description: For models and people.
        arguments: Struct that a call's arguments are read into.
        run: Called with one of these; returns what JSON can hold, or raises ``ToolError``.
    """

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[msgspec.Struct],
        run: Callable[[Any], object],
    ) -> None:
        self.name = name
        self.description = description
        self._arguments = arguments
        self._run = run

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        schema = msgspec.json.schema(self._arguments)
        (found,) = (
            each for name, each in schema["$defs"].items() if name == self._arguments.__name__
        )
        shown = {key: value for key, value in found.items() if key not in ("title", "description")}
        return {**shown, "additionalProperties": False}

    def call(self, arguments: object) -> object:
        """Run with what a model wrote.

        Raises:
            ToolError: The arguments do not fit, or the tool could not do it.
        """
        try:
            read = msgspec.convert(arguments, self._arguments)
        except msgspec.ValidationError as error:
            raise ToolError(f"the arguments do not fit: {error}") from None
        return self._run(read)


class ToolRegistry:
    """Tools that may run, by name.

    Args:
        tools: No two of one name.
        limits: Of every call.

    Raises:
        UsageError: Two tools have one name.
    """

    def __init__(self, tools: Iterable[AnyTool], limits: ToolLimits | None = None) -> None:
        self._tools: dict[str, AnyTool] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._changing = threading.Lock()
        self.limits = limits or ToolLimits()
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="zse-tool")
        for tool in tools:
            if tool.name in self._tools:
                raise UsageError(f"two tools are called {tool.name!r}")
            self._tools[tool.name] = tool

    def put(self, group: str, tools: Iterable[AnyTool]) -> None:
        """Put tools in the place of those that a group had; names of other tools stay theirs."""
        with self._changing:
            old = self._groups.get(group, ())
            kept = {name: tool for name, tool in self._tools.items() if name not in old}
            new = {tool.name: tool for tool in tools if tool.name not in kept}
            self._groups[group] = tuple(new)
            self._tools = {**kept, **new}

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def definitions(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return OpenAI's definitions of tools, of all without ``names``.

        Raises:
            UsageError: There is no such tool.
        """
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in (self._tools.values() if names is None else map(self._found, names))
        ]

    def execute(self, name: str, arguments: object) -> ToolResult:
        """Run a tool and wait for it; what fails is a result that says so.

        Args:
            arguments: An object, or its JSON text as models write it.

        Raises:
            UsageError: There is no such tool.
        """
        tool = self._found(name)
        began = time.monotonic()
        is_error = True
        try:
            output = self._waited_for(tool, _object_of(arguments))
            is_error = False
        except Late:
            output = f"error: it took longer than {self.limits.timeout_seconds:g} s"
        except ToolError as error:
            output = f"error: {error.message}"
        except Exception as error:  # noqa: BLE001 - a tool's defect is the model's answer, no crash
            output = f"error: the tool failed with {type(error).__name__}"
        return ToolResult(
            name=name, output=output, is_error=is_error, seconds=time.monotonic() - began
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _found(self, name: str) -> AnyTool:
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            raise UsageError(
                f"there is no tool {name[:80]!r} here", hint=f"Those that run here: {known}."
            )
        return self._tools[name]

    def _waited_for(self, tool: AnyTool, arguments: object) -> str:
        work = self._threads.submit(tool.call, arguments)
        try:
            value = work.result(timeout=self.limits.timeout_seconds)
        finally:
            work.cancel()
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        most = self.limits.output_characters
        return text if len(text) <= most else f"{text[:most]}\n[cut: {len(text)} characters]"


def _object_of(arguments: object) -> object:
    """Return the object that a text of JSON holds; anything else as it is.

    Raises:
        ToolError: The text is too long, or no JSON.
    """
    if not isinstance(arguments, str):
        return arguments
    if len(arguments) > _MOST_ARGUMENTS_CHARACTERS:
        raise ToolError(f"the arguments have more than {_MOST_ARGUMENTS_CHARACTERS} characters")
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise ToolError(f"the arguments are no JSON: {arguments[:_SHOWN_CHARACTERS]!r}") from None
