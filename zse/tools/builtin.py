"""The tools that come with zse, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.tools.calculator import calculator
from zse.tools.clock import clock
from zse.tools.http_get import http_get
from zse.tools.texts import parse_json, string_ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zse.tools.registry import Tool

_MAKERS = {
    "calculator": calculator,
    "datetime": clock,
    "parse_json": parse_json,
    "string_ops": string_ops,
}
ALL = "all"
"""Those that reach nothing outside this process, and ``http_get`` where hosts are named."""


def builtin_tools(names: Iterable[str], *, hosts: Sequence[str] = ()) -> list[Tool]:
    """Return tools by their names, each once.

    Args:
        names: Of tools, or ``all``.
        hosts: That ``http_get`` may ask.

    Raises:
        UsageError: There is none of that name, or ``http_get`` has no hosts.
    """
    wanted: dict[str, None] = {}
    for name in names:
        wanted.update(dict.fromkeys(_known(hosts) if name == ALL else [name]))
    return [_made(name, hosts) for name in wanted]


def _known(hosts: Sequence[str]) -> list[str]:
    return [*_MAKERS, *(["http_get"] if hosts else [])]


def _made(name: str, hosts: Sequence[str]) -> Tool:
    if name == "http_get":
        if not hosts:
            raise UsageError(
                "the tool http_get may ask no host", hint="Name some: --tool-host api.example.com."
            )
        return http_get(hosts)
    if name not in _MAKERS:
        raise UsageError(
            f"there is no tool {name!r}", hint=f"There are {', '.join([*_MAKERS, 'http_get'])}."
        )
    return _MAKERS[name]()
