"""Values as literals of a language: the one place that decides how a string is quoted.

Image names and environment values come from outside and may hold quotes, newlines or ``${``. Each
function returns text that the language's own parser reads back as the same value.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from zse.deploy.errors import DeployRule

if TYPE_CHECKING:
    from collections.abc import Callable

# What YAML 1.1 and 1.2 refuse in a stream unless it is escaped, or read as a line break.
_NOT_PRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HCL_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"\\]|[$%](?=\{)")
_PLAIN_PYTHON = re.compile(r"[ !#-&(-\[\]-~]*")
_DOCKER_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
_INDENT = "  "
_PYTHON_WIDTH = 60


def quote_json(value: Any, indent: str = "") -> str:
    """Write a value as JSON, lists and objects over several lines."""
    _check(value)
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text.replace("\n", "\n" + indent)


def quote_yaml(value: Any, indent: str = "") -> str:
    """Write a value as YAML: scalars in JSON's form, lists and mappings as blocks of lines.

    Args:
        value: Strings, numbers, booleans, None, lists and mappings of these.
        indent: White space before the line that the value continues.
    """
    _check(value)
    if isinstance(value, dict) and value:
        pairs = (_yaml_pair(key, item, indent + _INDENT) for key, item in value.items())
        return "\n" + "\n".join(indent + _INDENT + pair for pair in pairs)
    if isinstance(value, list) and value:
        return "\n" + "\n".join(_yaml_item(item, indent + _INDENT) for item in value)
    return _yaml_scalar(value)


def _yaml_pair(key: str, value: Any, indent: str) -> str:
    written = quote_yaml(value, indent)
    name = key if _PLAIN_KEY.fullmatch(key) and not _is_reserved(key) else _yaml_scalar(key)
    return f"{name}:{'' if written.startswith(chr(10)) else ' '}{written}"


def _yaml_item(value: Any, indent: str) -> str:
    if isinstance(value, dict) and value:
        pairs = [_yaml_pair(key, item, indent + _INDENT) for key, item in value.items()]
        return f"{indent}- " + f"\n{indent}{_INDENT}".join(pairs)
    if isinstance(value, list) and value:
        # A sequence in a sequence: its first dash stands on the line of the outer one.
        return f"{indent}-{quote_yaml(value, indent)}"
    return f"{indent}- {_yaml_scalar(value)}"


def _is_reserved(key: str) -> bool:
    # Words that YAML 1.1 reads as a boolean or null.
    return key.lower() in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _yaml_scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _NOT_PRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def quote_hcl(value: Any, indent: str = "") -> str:
    """Write a value as HCL (Terraform). Nothing in a string is ever interpolated."""
    _check(value)
    inner = indent + _INDENT
    if isinstance(value, dict):
        lines = [f"{inner}{_hcl_string(k)} = {quote_hcl(v, inner)}" for k, v in value.items()]
        return "{\n" + "\n".join(lines) + f"\n{indent}}}" if lines else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(quote_hcl(item, indent) for item in value) + "]"
    return _hcl_string(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _hcl_string(text: str) -> str:
    # A dollar sign written as an escape can begin no interpolation, whatever stands before it.
    escaped = _HCL_SPECIAL.sub(_hcl_escape, text)
    return f'"{escaped}"'


def _hcl_escape(match: re.Match[str]) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return short.get(match[0], f"\\u{ord(match[0]):04x}")


def quote_python(value: Any, indent: str = "") -> str:
    """Write a value as a Python literal, laid out as the formatter would."""
    _check(value)
    if isinstance(value, str):
        return f'"{value}"' if _PLAIN_PYTHON.fullmatch(value) else repr(value)
    if not isinstance(value, list | dict):
        return repr(value)
    inner = indent + 2 * _INDENT
    if isinstance(value, dict):
        items = [f"{quote_python(k)}: {quote_python(v, inner)}" for k, v in value.items()]
    else:
        items = [quote_python(item, inner) for item in value]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    on_one_line = opening + ", ".join(items) + closing
    if len(on_one_line) <= _PYTHON_WIDTH and "\n" not in on_one_line:
        return on_one_line
    lines = "".join(f"{inner}{item},\n" for item in items)
    return f"{opening}\n{lines}{indent}{closing}"


def quote_shell(value: Any, indent: str = "") -> str:  # noqa: ARG001 - one signature for all
    """Write a value as one word of a shell command, a list as several words."""
    _check(value)
    if isinstance(value, list):
        return " ".join(quote_shell(item) for item in value)
    return shlex.quote(str(value))


def quote_docker(value: Any, indent: str = "") -> str:  # noqa: ARG001 - one signature for all
    """Write a value as a word of a Dockerfile, which has no quoting: others are refused."""
    if not isinstance(value, str) or not _DOCKER_WORD.fullmatch(value):
        raise DeployRule.UNRENDERABLE_VALUE(f"{value!r} cannot stand in a Dockerfile")
    return value


QUOTERS: dict[str, Callable[[Any, str], str]] = {
    ".json": quote_json,
    ".yaml": quote_yaml,
    ".tf": quote_hcl,
    ".tfvars": quote_hcl,
    ".py": quote_python,
    ".sh": quote_shell,
    "Dockerfile": quote_docker,
    ".dockerfile": quote_docker,
}
"""File name's end -> how values are written in it."""


def _check(value: Any) -> None:
    if isinstance(value, str):
        if "\x00" in value:
            raise DeployRule.UNRENDERABLE_VALUE("a value holds a NUL character")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DeployRule.UNRENDERABLE_VALUE(f"{value!r} is not valid Unicode text") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise DeployRule.UNRENDERABLE_VALUE(f"the key {key!r} is not text")
            _check(key)
            _check(item)
    elif isinstance(value, list):
        for item in value:
            _check(item)
    elif value is not None and not isinstance(value, bool | int | float):
        raise DeployRule.UNRENDERABLE_VALUE(f"{value!r} is not a value that files hold")
