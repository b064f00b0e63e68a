"""The page of the server's routes: from the document that the server itself gives out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.serve.access.rules import scope_needed
from zse.serve.admin.application import create_admin
from zse.serve.app import HOT_ROUTES
from zse.serve.ledger import Ledger
from zse.serve.state import AppState

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]

_HEAD = """# Routes

Generated from the server's own description: `GET /openapi.json` answers it, `GET /docs` shows it.

Where keys exist, a route asks for one with its scope; an admin key may do everything. Every failure
is answered with OpenAI's error body, but for `/v1/messages`, whose failures are Anthropic's.
"""
_SOCKETS = (
    ("/ws/chat", "Conversations: one answer at a time, token by token."),
    ("/ws/stats", "What `GET /api/stats` says, again and again."),
)


def routes_page() -> str:
    document = create_admin(AppState(ledger=Ledger()), HOT_ROUTES).openapi()
    lines = [_HEAD, "| route | scope | what it does |", "|---|---|---|"]
    mounted = []
    hot = {(route.method.lower(), route.described_path) for route in HOT_ROUTES}
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            lines.append(f"| `{method.upper()} {path}` | {_scope(path)} | {operation['summary']} |")
            if (method, path) not in hot and operation.get("responses"):
                mounted.append((f"{method.upper()} {path}", operation))
    lines += [f"| `WS {path}` | {_scope(path)} | {text} |" for path, text in _SOCKETS]
    schemas = document["components"]["schemas"]
    told: dict[str, None] = {}
    for title, operation in mounted:
        lines += ["", f"## {title}", "", *_operation(operation, told)]
    lines += ["", "## Shapes", ""]
    shown: set[str] = set()
    while rest := [name for name in told if name not in shown]:
        for name in rest:
            shown.add(name)
            lines += [f"### {name}", "", *_fields(schemas[name], told), ""]
    return "\n".join(lines).rstrip() + "\n"


def _scope(path: str) -> str:
    return scope_needed(path) or ""


def _operation(operation: Schema, told: dict[str, None]) -> Iterator[str]:
    yield operation["summary"]
    yield ""
    if "requestBody" in operation:
        ((media_type, body),) = operation["requestBody"]["content"].items()
        kind = "" if media_type == "application/json" else f"`{media_type}` of "
        fields = ", ".join(f"`{name}`" for name in body["schema"].get("properties", ()))
        yield f"- body: {kind}{fields if kind else _type(body['schema'], told)}"
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        text = f"- `{parameter['name']}` in the {parameter['in']}: {_type(schema, told)}"
        yield f"{text}{_default(schema)}. {parameter.get('description', '')}".rstrip()
    for status, answer in operation["responses"].items():
        media = answer.get("content", {}).get("application/json", {})
        if status != "default":
            yield f"- {status}: {_type(media.get('schema', {}), told)}"


def _fields(schema: Schema, told: dict[str, None]) -> Iterator[str]:
    if text := schema.get("description"):
        yield from (text, "")
    required = set(schema.get("required", ()))
    yield "| field | type | | meaning |"
    yield "|---|---|---|---|"
    for name, part in schema.get("properties", {}).items():
        state = "required" if name in required else _default(part).removeprefix(", ")
        meaning = part.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {_type(part, told)} | {state} | {meaning} |"


def _type(schema: Schema, told: dict[str, None]) -> str:
    return " or ".join(dict.fromkeys(_types(schema, told))) or "anything"


def _types(schema: Schema, told: dict[str, None]) -> Iterator[str]:
    for part in schema.get("anyOf", ()):
        yield from _types(part, told)
    if name := schema.get("$ref", "").rpartition("/")[2]:
        told.setdefault(name)
        yield f"[{name}](#{name.lower()})"
    elif "enum" in schema or "const" in schema:
        yield from (f"`{json.dumps(one)}`" for one in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        yield f"list of {_type(schema.get('items', {}), told)}"
    elif isinstance(values := schema.get("additionalProperties"), dict):
        yield f"object of {_type(values, told)}"
    elif "type" in schema:
        yield str(schema["type"])


def _default(schema: Schema) -> str:
    return f", default `{json.dumps(schema['default'])}`" if "default" in schema else ""
