"""Which MCP servers are asked: ``NAME=COMMAND`` and ``NAME=https://HOST/PATH``, as they are given.

This file imports no SDK, so that a start can check what was given before it loads a model.
"""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING

from zse.errors import MissingDependencyError, UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
_WAYS = "Write NAME=COMMAND or NAME=https://HOST/PATH; NAME has letters, digits and '-', at most 32"


@record
class McpServer:
    """One server.

    Attributes:
        name: What its tools' names begin with.
        command: The words that start it, for stdio; empty where it has an address.
        url: Its address, for streamable HTTP.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""


def read_servers(given: Iterable[str]) -> list[McpServer]:
    """Read what ``--mcp`` was given.

    Raises:
        UsageError: It names no server, or two of one name.
    """
    servers: dict[str, McpServer] = {}
    for text in given:
        server = _read(text)
        if server.name in servers:
            raise UsageError(f"--mcp names two servers {server.name!r}")
        servers[server.name] = server
    return list(servers.values())


def check_servers(given: Iterable[str]) -> None:
    """Refuse before the start what could never be connected.

    Raises:
        UsageError: As ``read_servers``.
        MissingDependencyError: The SDK is not installed.
    """
    if read_servers(given) and find_spec("mcp") is None:
        raise MissingDependencyError("--mcp needs the package mcp", extra="mcp")


def _read(text: str) -> McpServer:
    name, equals, target = text.partition("=")
    target = target.strip()
    if not equals or not target or not _NAME.fullmatch(name):
        raise UsageError(f"--mcp {text[:80]!r} names no server", hint=f"{_WAYS}.")
    if target.startswith(("https://", "http://")):
        return McpServer(name=name, url=target)
    try:
        words = tuple(shlex.split(target))
    except ValueError as error:
        raise UsageError(f"--mcp {name}: the command cannot be read: {error}") from None
    return McpServer(name=name, command=words)
