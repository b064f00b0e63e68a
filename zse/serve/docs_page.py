"""``/docs``: the OpenAPI document as one page, rendered here: it works on a closed network."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from zse.serve.pages import page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import Response

Schema = dict[str, Any]


def docs_page(document: Mapping[str, Any]) -> Response:
    schemas = document["components"]["schemas"]
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    info = document["info"]
    body = (
        f"<p>Version {escape(info['version'])}. For programs: "
        '<a href="/openapi.json"><code>/openapi.json</code></a>.</p>'
        f"<h2>Routes</h2>{''.join(operations)}"
        f"<h2>Bodies</h2>{''.join(_body(name, schemas[name]) for name in sorted(schemas))}"
    )
    return page(f"{info['title']}: the API", body)


def _operation(method: str, path: str, operation: Schema) -> str:
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    asks = f"<p>Body: {_type(media['schema'])}</p>" if media else ""
    return (
        f"<details><summary><code>{escape(method.upper())} {escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary>{asks}<table>{answers}</table></details>"
    )


def _body(name: str, schema: Schema) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type(part)}</td>"
        f"<td>{'required' if field in required else _default(part)}</td></tr>"
        for field, part in schema.get("properties", {}).items()
    )
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<p>{escape(schema.get('description', ''))}</p><table>{rows}</table></details>"
    )


def _type(schema: Schema) -> str:
    return " or ".join(dict.fromkeys(_types(schema))) or "anything"


def _types(schema: Schema) -> Iterator[str]:
    """Yield the types that a schema allows, as HTML."""
    for part in schema.get("anyOf", ()):
        yield from _types(part)
    if name := schema.get("$ref", "").rpartition("/")[2]:
        yield f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "enum" in schema:
        yield " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    elif schema.get("type") == "array":
        yield f"list of {_type(schema.get('items', {}))}"
    elif "type" in schema:
        yield escape(str(schema["type"]))


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return ""
    return f"default <code>{escape(json.dumps(schema['default']))}</code>"
