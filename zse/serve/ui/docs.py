"""The documentation: how to begin, in four languages, and every route of the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.serve.http.requests import state_of
from zse.serve.pages import routes_and_bodies
from zse.serve.ui.pages import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

_FEATURED = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
"""Shown with an example of how they are asked; what they do is the document's own sentence."""


async def show_docs(request: Request) -> Response:
    """Answer ``GET /docs``."""
    state = state_of(request)
    document: Mapping[str, Any] = request.app.openapi()
    return render(
        request,
        "docs.html",
        page="docs",
        base=str(request.base_url).rstrip("/"),
        model=state.model.name if state.model is not None else "default",
        asks_for_key=state.access.asks_for_key,
        featured=[
            {"path": path, "summary": document["paths"][path]["post"]["summary"]}
            for path in _FEATURED
            if path in document["paths"]
        ],
        reference=routes_and_bodies(document),
    )
