"""The application: hot routes on plain Starlette, the described rest mounted on first use.

Importing this module costs no torch, transformers, FastAPI, pydantic or numpy; a test proves it.
FastAPI costs half a second of imports that would otherwise stand between a start and its first
token; nobody who waits for a token is waiting for the API's description, or for a page.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from zse.errors import ZSEError
from zse.serve.health import live, metrics, ping, ready
from zse.serve.http.errors import (
    ClientGoneError,
    handle_client_gone,
    handle_crash,
    handle_http_error,
    handle_zse_error,
)
from zse.serve.http.requests import read_body
from zse.serve.http.shell import Shell
from zse.serve.openai.chat import answer_chat, create_chat_completion
from zse.serve.openai.completions import answer_completion, create_completion
from zse.serve.openai.models import get_model, list_models

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from zse.serve.state import AppState

DESCRIBED_PATHS = ("/docs", "/openapi.json", "/version")


async def home(request: Request) -> Response:
    """Handle ``/``; its page is imported when somebody asks."""
    from zse.serve import pages

    return await pages.home(request)


async def invoke(request: Request) -> ASGIApp:
    """SageMaker's one route: the body says which of the two it is."""
    mapping = await read_body(request)
    return await (answer_chat if "messages" in mapping else answer_completion)(request, mapping)


def create_app(state: AppState, *, allowed_hosts: frozenset[str] | None = None) -> ASGIApp:
    """Return the ASGI application; where ``allowed_hosts`` are None, it answers to any name."""
    admin = LazyAdmin(state)
    app = Starlette(
        routes=[
            Route("/", home, methods=["GET"]),
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/v1/completions", create_completion, methods=["POST"]),
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", get_model, methods=["GET"]),
            Route("/health", ready, methods=["GET"]),
            Route("/health/ready", ready, methods=["GET"]),
            Route("/health/live", live, methods=["GET"]),
            Route("/ping", ping, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/invocations", invoke, methods=["POST"]),
            *(Route(path, admin) for path in DESCRIBED_PATHS),
        ],
        exception_handlers={
            ZSEError: handle_zse_error,
            ClientGoneError: handle_client_gone,
            HTTPException: handle_http_error,
            Exception: handle_crash,
        },
    )
    app.router.redirect_slashes = False
    app.state.zse = state
    return Shell(app, state=state, allowed_hosts=allowed_hosts)


class LazyAdmin:
    """An ASGI application that becomes the FastAPI one."""

    __name__ = "admin"

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, importing the application before the first answer."""
        self._state.require_model()
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._build)
        await self._app(scope, receive, send)

    def _build(self) -> ASGIApp:
        from zse.serve.admin import create_admin

        return create_admin(self._state)
