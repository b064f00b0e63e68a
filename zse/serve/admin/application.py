"""The FastAPI application: its routers, its errors and the description of every route.

Imported late (see ``zse.serve.app``): nothing on the hot path may import this module.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from zse import __version__
from zse.errors import ZSEError
from zse.serve.admin import (
    adapters,
    analytics,
    audit,
    batching,
    documents,
    keys,
    models,
    stats,
    swapping,
    tools,
    websockets,
)
from zse.serve.admin.declared import DeclaredJSON
from zse.serve.admin.description import describe_routes
from zse.serve.admin.failures import handle_invalid_request
from zse.serve.http.errors import handle_crash, handle_http_error, handle_zse_error
from zse.serve.pages import docs_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.http.routes import HotRoute
    from zse.serve.state import AppState

_ROUTERS = (
    models.router,
    swapping.router,
    adapters.router,
    batching.router,
    stats.router,
    analytics.router,
    audit.router,
    keys.router,
    tools.router,
    documents.router,
    websockets.router,
)


async def _plain_docs(request: Request) -> Response:
    return docs_page(request.app.openapi())


def create_admin(state: AppState, hot_routes: Sequence[HotRoute]) -> FastAPI:
    """Return the application; it describes ``hot_routes`` beside its own."""
    app = FastAPI(
        title="zse",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": state.options.http.root_path.rstrip("/") or "/"}],
    )
    app.state.zse = state
    app.router.redirect_slashes = False
    app.add_middleware(DeclaredJSON)
    for router in _ROUTERS:
        app.include_router(router)

    app.add_route("/docs", _plain_docs, include_in_schema=False)

    @app.get("/version", summary="What runs here.")
    def version() -> dict[str, Any]:
        model = state.model
        return {
            "version": __version__,
            "python": platform.python_version(),
            "model": model.name if model else None,
            "fingerprint": model.fingerprint if model else None,
            "max_context": model.max_context if model else None,
            **(model.details if model else {}),
        }

    own_schema = app.openapi
    app.openapi = lambda: describe_routes(own_schema(), hot_routes)  # type: ignore[method-assign]
    app.add_exception_handler(ZSEError, handle_zse_error)
    app.add_exception_handler(RequestValidationError, handle_invalid_request)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(Exception, handle_crash)
    return app
