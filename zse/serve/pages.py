"""Pages for people: plain HTML that loads and runs nothing, under a policy that says so.

Imported when somebody first asks for one.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from zse import __version__
from zse.serve.http.requests import json_response, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request

    from zse.serve.state import AppState

Schema = dict[str, Any]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}
code{font:14px/1.5 ui-monospace,monospace}details{margin:.6rem 0}summary{cursor:pointer}
table{border-collapse:collapse;width:100%}
td{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8884}
"""
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_PAGES = {
    "/chat": "the playground: talk to the model",
    "/dashboard": "what the server does, live",
    "/documents": "add files that the model may answer from",
    "/models": "load, unload, pin, put to sleep",
    "/keys": "API keys",
    "/requests": "the log of requests",
}
_LINKS = {
    "/v1/models": "the model",
    "/docs": "every route and field",
    "/health": "ready or not",
    "/metrics": "Prometheus metrics",
    "/version": "what runs here",
}
_REFRESH = '<meta http-equiv="refresh" content="2">'


def page(title: str, body: str, *, head: str = "") -> Response:
    """Return a whole page.

    Args:
        title: Plain text.
        body: HTML whose texts are escaped.
        head: More of the head, likewise.
    """
    document = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
    return Response(document, media_type="text/html", headers=HEADERS)


async def home(request: Request) -> Response:
    """Say what this is and where to go on: a page for browsers, JSON for everybody else."""
    state = state_of(request)
    if "text/html" in request.headers.get("accept", ""):
        answer = page("zse", _home_body(state), head="" if state.is_ready else _REFRESH)
    else:
        body = {
            "name": "zse",
            "version": __version__,
            "status": "ready" if state.is_ready else state.stage,
            "model": state.model.name if state.model else None,
            "links": list(_LINKS),
        }
        answer = json_response(body)
    answer.headers["vary"] = "accept"
    return answer


def _home_body(state: AppState) -> str:
    links = "".join(
        f'<tr><td><a href="{path[1:]}"><code>{path}</code></a></td><td>{what}</td></tr>'
        for path, what in ({**_PAGES, **_LINKS} if state.options.ui else _LINKS).items()
    )
    return (
        f"<p>zse {__version__} serves the OpenAI API under <code>/v1</code>.</p>"
        f"<p>{_status(state)}</p><table>{links}</table>"
    )


def _status(state: AppState) -> str:
    if state.model is None or state.is_leaving:
        return f"Not ready: {escape(state.stage)}."
    return f"Ready: the model is <code>{escape(state.model.name)}</code>."


def docs_page(document: Mapping[str, Any]) -> Response:
    """Render an OpenAPI document here, so that the page works on a closed network."""
    return page(f"{document['info']['title']}: the API", routes_and_bodies(document))


def routes_and_bodies(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as HTML whose texts are escaped."""
    schemas = document["components"]["schemas"]
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f"<p>Version {escape(document['info']['version'])}. For programs: "
        '<a href="openapi.json"><code>/openapi.json</code></a>.</p>'
        f"<h2>Routes</h2>{''.join(operations)}"
        f"<h2>Bodies</h2>{''.join(_body(name, schemas[name]) for name in sorted(schemas))}"
    )


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
        f"{_cell('required' if field in required else _default(part))}</tr>"
        for field, part in schema.get("properties", {}).items()
    )
    told = f"<p>{escape(schema['description'])}</p>" if schema.get("description") else ""
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"{told}{table}</details>"
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


def _cell(text: str) -> str:
    """Return the last cell of a row; the page is long, and an empty one need not be sent."""
    return f"<td>{text}</td>" if text else ""


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return ""
    return f"default <code>{escape(json.dumps(schema['default']))}</code>"
