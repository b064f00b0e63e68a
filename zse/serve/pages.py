"""Pages for people: plain HTML that loads and runs nothing, under a policy that says so.

Imported when somebody first asks for one.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING

from starlette.responses import Response

from zse import __version__
from zse.serve.requests import json_response, state_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.state import AppState

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
        f"<body><h1>{escape(title)}</h1>{body}</body></html>"
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
        f'<tr><td><a href="{path}"><code>{path}</code></a></td><td>{what}</td></tr>'
        for path, what in _LINKS.items()
    )
    return (
        f"<p>zse {__version__} serves the OpenAI API under <code>/v1</code>.</p>"
        f"<p>{_status(state)}</p><table>{links}</table>"
    )


def _status(state: AppState) -> str:
    if state.model is None or state.draining:
        return f"Not ready: {escape(state.stage)}."
    return f"Ready: the model is <code>{escape(state.model.name)}</code>."
