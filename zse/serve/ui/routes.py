"""The routes of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from zse.serve.access.rules import ASSETS
from zse.serve.ui import audit, documents, keys, models
from zse.serve.ui.assets import asset
from zse.serve.ui.conversation_routes import router
from zse.serve.ui.dashboard import show_dashboard
from zse.serve.ui.docs import show_docs
from zse.serve.ui.login import log_in, log_out, show_login
from zse.serve.ui.playground import show_chat

if TYPE_CHECKING:
    from fastapi import FastAPI


def add_pages(app: FastAPI) -> None:
    """Serve the pages beside the routes of the API, and before those that they replace."""
    app.include_router(router)
    app.router.routes[:0] = page_routes()


def page_routes() -> list[Route]:
    """Return the routes of the pages and of what is in them."""
    return [
        Route(ASSETS + "{name:path}", asset),
        Route("/login", show_login),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
        Route("/dashboard", show_dashboard),
        Route("/chat", show_chat),
        Route("/docs", show_docs),
        Route("/models", models.show_models),
        Route("/ui/models", models.show_part),
        Route("/ui/models/load", models.begin_load, methods=["POST"]),
        Route("/ui/models/unload", models.begin_unload, methods=["POST"]),
        Route("/ui/models/pin", models.pin, methods=["POST"]),
        Route("/ui/models/swap", models.swap, methods=["POST"]),
        Route("/ui/models/sleep", models.fall_asleep, methods=["POST"]),
        Route("/ui/models/wake", models.come_back, methods=["POST"]),
        Route("/documents", documents.show_documents),
        Route("/ui/documents", documents.show_part),
        Route("/ui/documents/search", documents.show_found),
        Route("/ui/documents/delete", documents.delete_document, methods=["POST"]),
        Route("/keys", keys.show_keys),
        Route("/ui/keys", keys.create_key, methods=["POST"]),
        Route("/ui/keys/asking", keys.switch_asking, methods=["POST"]),
        Route("/ui/keys/{what}", keys.change_key, methods=["POST"]),
        Route("/requests", audit.show_requests),
        Route("/ui/requests", audit.show_part),
    ]
