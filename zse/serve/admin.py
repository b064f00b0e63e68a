"""The FastAPI part: the API's description for all routes, and ``/version``.

Imported late (see ``zse.serve.app``): nothing on the hot path may import this module.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI

from zse import __version__
from zse.serve.http.errors import ErrorBody, handle_crash, handle_http_error
from zse.serve.openai.protocol import ChatRequest, CompletionRequest
from zse.serve.pages import docs_page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from zse.serve.state import AppState

_REF = "#/components/schemas/{name}"
_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}
_PLAIN = {"text/plain": {"schema": {"type": "string"}}}
_ANY_JSON = {"application/json": {"schema": {"type": "object"}}}

# path -> (method, summary, name of the body's schema or None, successful statuses)
_HOT_ROUTES: dict[str, tuple[str, str, str | None, dict[str, str]]] = {
    "/v1/chat/completions": ("post", "Answer a conversation.", "ChatRequest", {"200": "Answer"}),
    "/v1/completions": ("post", "Continue a text.", "CompletionRequest", {"200": "Answer"}),
    "/v1/models": ("get", "List the models.", None, {"200": "Models"}),
    "/v1/models/{model}": ("get", "Describe one model.", None, {"200": "Model"}),
    "/health": ("get", "Readiness.", None, {"200": "Ready"}),
    "/health/ready": ("get", "Readiness.", None, {"200": "Ready"}),
    "/health/live": ("get", "Liveness.", None, {"200": "Alive"}),
    "/ping": ("get", "Readiness for load balancers.", None, {"200": "Ready", "204": "Loading"}),
    "/": ("get", "What this is, for people and programs.", None, {"200": "Home"}),
    "/metrics": ("get", "Prometheus metrics.", None, {"200": "Exposition"}),
    "/invocations": ("post", "Either of the two, chosen by its body.", None, {"200": "Answer"}),
}


def create_admin(state: AppState) -> ASGIApp:
    app = FastAPI(title="zse", version=__version__, docs_url=None, redoc_url=None)

    async def docs(request: Request) -> Response:  # noqa: ARG001
        return docs_page(app.openapi())

    app.add_route("/docs", docs, include_in_schema=False)

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

    def whole_schema() -> dict[str, Any]:
        schema = own_schema()
        _describe_hot_routes(schema)
        return schema

    app.openapi = whole_schema  # type: ignore[method-assign]
    app.add_exception_handler(404, handle_http_error)
    app.add_exception_handler(405, handle_http_error)
    app.add_exception_handler(Exception, handle_crash)
    return app


def _describe_hot_routes(schema: dict[str, Any]) -> None:
    """Add the routes that FastAPI does not serve to its description."""
    types = [ChatRequest, CompletionRequest, ErrorBody]
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
    error = {"schema": {"$ref": _REF.format(name="ErrorBody")}}
    for path, (method, summary, body, statuses) in _HOT_ROUTES.items():
        content: dict[str, Any] = {**_ANY_JSON, **_EVENTS} if body else _ANY_JSON
        responses: dict[str, Any] = {code: {"description": it} for code, it in statuses.items()}
        responses["200"]["content"] = _PLAIN if path == "/metrics" else content
        responses["default"] = {"description": "Error", "content": {"application/json": error}}
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
        if method == "post":
            ref = {"$ref": _REF.format(name=body)} if body else {"type": "object"}
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": ref}},
            }
        if "{" in path:
            operation["parameters"] = [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        schema["paths"].setdefault(path, {})[method] = operation
