"""One OpenAPI document for all routes: FastAPI's own, and the hot ones from their table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from zse.serve.http.dialects import ANTHROPIC, OLLAMA, OPENAI, dialect_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.http.routes import HotRoute

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_VALIDATION = "422"
"""Of FastAPI's own description; here a body that breaks the protocol gets 400."""
_UNUSED = ("HTTPValidationError", "ValidationError")
_PARAMETER = re.compile(r"\{(\w+)\}")


def describe_routes(schema: Schema, hot_routes: Sequence[HotRoute]) -> Schema:
    """Add to FastAPI's description what it does not know; return it.

    Every operation gets the error body of its protocol, which it answers failures with.
    """
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in _UNUSED:
        schemas.pop(name, None)
    types = {route.body() for route in hot_routes if route.body is not None}
    types |= {dialect.error_body for dialect in (OPENAI, ANTHROPIC, OLLAMA)}
    ordered = sorted(types, key=lambda one: one.__name__)
    schemas.update(msgspec.json.schema_components(ordered, ref_template=_REF)[1])
    for route in hot_routes:
        path = schema["paths"].setdefault(route.described_path, {})
        path[route.method.lower()] = _operation_of(route)
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            operation["responses"].pop(_VALIDATION, None)
            operation["responses"].setdefault("default", _error_of(path))
    return schema


def _error_of(path: str) -> Schema:
    ref = {"$ref": _REF.format(name=dialect_of(path).error_body.__name__)}
    return {"description": "Error", "content": {_JSON: {"schema": ref}}}


def _operation_of(route: HotRoute) -> Schema:
    responses: Schema = {code: {"description": text} for code, text in route.answers.items()}
    kind = "string" if route.content_type.startswith("text/") else "object"
    if "200" in responses and route.content_type:
        responses["200"]["content"] = {route.content_type: {"schema": {"type": kind}}}
    if route.streams:
        responses["200"]["content"][route.stream_type] = {"schema": {"type": "string"}}
    operation: Schema = {"summary": route.summary, "responses": responses}
    if route.method == "POST":
        body = {"type": "object"}
        if route.body is not None:
            body = {"$ref": _REF.format(name=route.body().__name__)}
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    names = _PARAMETER.findall(route.described_path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation
