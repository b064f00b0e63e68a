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
from starlette.routing import Route, WebSocketRoute

from zse.errors import ZSEError
from zse.serve.health import live, metrics, ping, ready
from zse.serve.http.errors import (
    ClientGoneError,
    handle_client_gone,
    handle_crash,
    handle_http_error,
    handle_zse_error,
)
from zse.serve.http.lazy_handlers import Late, imported
from zse.serve.http.requests import read_body
from zse.serve.http.routes import HotRoute
from zse.serve.http.shell import in_shell
from zse.serve.ollama.routes import OLLAMA_ROUTES
from zse.serve.openai.chat import answer_chat, create_chat_completion
from zse.serve.openai.models import get_model, list_models
from zse.serve.openai.protocol import ChatRequest, CompletionRequest
from zse.serve.text_routes import TEXT_ROUTES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from zse.serve.http.rules import HTTPRules
    from zse.serve.state import AppState

ADMIN_PATHS = (
    *("/docs", "/openapi.json", "/version", "/api/{rest:path}"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
)


UI_PATHS = (
    *("/dashboard", "/chat", "/documents", "/models", "/keys", "/requests"),
    *("/login", "/logout", "/ui/{rest:path}"),
)
"""Of pages; with ``--no-ui`` there are none."""


async def invoke(request: Request) -> ASGIApp:
    """SageMaker's one route: the body says which of the two it is."""
    mapping = await read_body(request)
    if "messages" in mapping:
        return await answer_chat(request, mapping)
    from zse.serve.openai.completions import answer_completion

    return await answer_completion(request, mapping)


_READY = {"200": "Ready"}
_CREATING = "zse.serve.responses.creating"
_KEPT = "zse.serve.responses.stored"
RESPONSE_ROUTES = (
    HotRoute(
        path="/v1/responses",
        handler=Late(_CREATING, "create_response"),
        summary="Answer items with items.",
        method="POST",
        body=imported("zse.serve.responses.protocol", "ResponsesRequest"),
        streams=True,
    ),
    HotRoute(
        path="/v1/responses/input_tokens",
        handler=Late(_CREATING, "count_input_tokens"),
        summary="Count the tokens of items.",
        method="POST",
        body=imported("zse.serve.responses.protocol", "InputTokensRequest"),
    ),
    HotRoute(
        path="/v1/responses/{response_id}",
        handler=Late(_KEPT, "get_response"),
        summary="Show a response that was kept.",
    ),
    HotRoute(
        path="/v1/responses/{response_id}",
        handler=Late(_KEPT, "delete_response"),
        summary="Forget a response.",
        method="DELETE",
    ),
    HotRoute(
        path="/v1/responses/{response_id}/cancel",
        handler=Late(_KEPT, "cancel_response"),
        summary="Stop making a response in the background.",
        method="POST",
    ),
    HotRoute(
        path="/v1/responses/{response_id}/input_items",
        handler=Late(_KEPT, "list_input_items"),
        summary="List the items that a response was made of.",
    ),
)
HOT_ROUTES = (
    HotRoute(
        path="/",
        handler=Late("zse.serve.pages", "home"),
        summary="What this is, for people and programs.",
    ),
    HotRoute(
        path="/v1/chat/completions",
        handler=create_chat_completion,
        summary="Answer a conversation.",
        method="POST",
        body=lambda: ChatRequest,
        streams=True,
    ),
    HotRoute(
        path="/v1/completions",
        handler=Late("zse.serve.openai.completions", "create_completion"),
        summary="Continue a text.",
        method="POST",
        body=lambda: CompletionRequest,
        streams=True,
    ),
    *RESPONSE_ROUTES,
    HotRoute(
        path="/v1/messages",
        handler=Late("zse.serve.anthropic.messages", "create_message"),
        summary="Answer a conversation, as Anthropic's API does.",
        method="POST",
        body=imported("zse.serve.anthropic.protocol", "MessagesRequest"),
        streams=True,
    ),
    HotRoute(
        path="/v1/messages/count_tokens",
        handler=Late("zse.serve.anthropic.messages", "count_tokens"),
        summary="Count the tokens of a conversation, as Anthropic's API does.",
        method="POST",
        body=imported("zse.serve.anthropic.protocol", "CountTokensRequest"),
    ),
    HotRoute(
        path="/v1/streams/{stream_id}",
        handler=Late("zse.serve.http.resuming", "resume_stream"),
        summary="Go on reading a stream behind one of its events.",
        content_type="text/event-stream",
    ),
    HotRoute(
        path="/v1/streams/{stream_id}",
        handler=Late("zse.serve.http.resuming", "end_stream"),
        summary="End a stream that goes on without its client.",
        method="DELETE",
        answers={"204": "Ended"},
    ),
    *TEXT_ROUTES,
    *OLLAMA_ROUTES,
    HotRoute(path="/v1/models", handler=list_models, summary="List the models."),
    HotRoute(path="/v1/models/{model:path}", handler=get_model, summary="Describe one model."),
    HotRoute(path="/health", handler=ready, summary="Readiness.", answers=_READY),
    HotRoute(path="/health/ready", handler=ready, summary="Readiness.", answers=_READY),
    HotRoute(path="/health/live", handler=live, summary="Liveness.", answers={"200": "Alive"}),
    HotRoute(
        path="/ping",
        handler=ping,
        summary="Readiness for load balancers.",
        answers={**_READY, "204": "Loading"},
        content_type="",
    ),
    HotRoute(
        path="/metrics", handler=metrics, summary="Prometheus metrics.", content_type="text/plain"
    ),
    HotRoute(
        path="/load",
        handler=Late("zse.serve.load_report", "load_report"),
        summary="How busy the server is, for routers.",
    ),
    HotRoute(
        path="/sleep",
        handler=Late("zse.serve.fleet.routes", "sleep"),
        summary="Let all models give their memory back.",
        method="POST",
        answers={"200": "Asleep"},
        content_type="",
    ),
    HotRoute(
        path="/wake_up",
        handler=Late("zse.serve.fleet.routes", "wake_up"),
        summary="Bring the models back that were there.",
        method="POST",
        answers={"200": "Awake"},
        content_type="",
    ),
    HotRoute(
        path="/is_sleeping",
        handler=Late("zse.serve.fleet.routes", "is_sleeping"),
        summary="Whether the models have given their memory back.",
    ),
    HotRoute(
        path="/mcp",
        handler=Late("zse.serve.mcp_server.endpoint", "answer_mcp"),
        summary="Answer a message of the Model Context Protocol.",
        method="POST",
        answers={"200": "Answer", "202": "Taken"},
    ),
    HotRoute(
        path="/mcp",
        handler=Late("zse.serve.mcp_server.endpoint", "refuse_stream"),
        summary="Say that there is no stream but those of answers.",
        answers={"405": "No stream"},
        content_type="",
    ),
    HotRoute(
        path="/invocations",
        handler=invoke,
        summary="Either of the two, chosen by its body.",
        method="POST",
        streams=True,
    ),
)
"""Every route but FastAPI's: what is served is what is described."""


def create_app(state: AppState, *, rules: HTTPRules | None = None) -> ASGIApp:
    """Return the ASGI application; without rules, it answers everybody."""
    admin = LazyAdmin(state)
    app = Starlette(
        routes=[
            *(route.to_route() for route in HOT_ROUTES),
            *(Route(path, admin) for path in ADMIN_PATHS),
            *(Route(path, admin) for path in UI_PATHS if state.options.ui),
            WebSocketRoute("/ws/{rest:path}", admin),
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
    return in_shell(app, state=state, rules=rules)


class LazyAdmin:
    """An ASGI application that becomes the FastAPI one."""

    __name__ = "admin"

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, importing the application before the first answer."""
        self._state.require_started()
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._build)
        await self._app(scope, receive, send)

    def _build(self) -> ASGIApp:
        from zse.serve.admin.application import create_admin

        admin = create_admin(self._state, HOT_ROUTES)
        if self._state.options.ui:
            from zse.serve.ui.routes import add_pages

            add_pages(admin)
        return admin
