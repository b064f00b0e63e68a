"""Which scope a path needs: what is not named here is for admins.

Paths are the application's own, as its router reads them. Starlette compares them letter by letter,
and so does this: a path that is spelled otherwise reaches no route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.serve.access.caller import Scope

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ping"})
"""Probes: they say nothing but whether the server is up."""
METRICS_PATH = "/metrics"
MEASURES = frozenset({METRICS_PATH, "/load"})
"""What says how busy the server is, and nothing of what is asked."""
ASSETS = "/ui/assets/"
"""What pages are made of: the same for everybody, and nothing that is known here."""
PAGES = frozenset({"/dashboard", "/chat", "/documents", "/models", "/keys", "/requests", "/docs"})
"""Of a browser that may not see one of these the login asks for a key."""
OLLAMA_PATHS = frozenset(
    f"/api/{name}"
    for name in ("chat", "generate", "embed", "embeddings", "tags", "ps", "show", "version")
)
"""Of Ollama's API, which lie among those of administration."""
_UNGUARDED = OPEN_PATHS | {"/login"}
_PATHS: dict[str, Scope] = {
    METRICS_PATH: "metrics",
    "/load": "metrics",
    "/ws/stats": "metrics",
    "/": "inference",
    "/docs": "inference",
    "/chat": "inference",
    "/documents": "inference",
    "/logout": "inference",
    "/openapi.json": "inference",
    "/version": "inference",
    "/invocations": "inference",
    "/mcp": "inference",
    "/tokenize": "inference",
    "/detokenize": "inference",
    "/tokenizer_info": "inference",
    "/is_sleeping": "inference",
    "/rerank": "inference",
    "/v2/rerank": "inference",
    "/ws/chat": "inference",
    **dict.fromkeys(OLLAMA_PATHS, "inference"),
    "/v1/load_lora_adapter": "admin",
    "/v1/unload_lora_adapter": "admin",
}
_FOLDERS: dict[str, Scope] = {
    "/v1/": "inference",
    "/api/stats": "metrics",
    "/api/chat/": "inference",
    "/api/tools": "inference",
    "/api/rag": "inference",
    "/ui/documents": "inference",
}


def scope_needed(path: str) -> Scope | None:
    """Return what a caller must be allowed to do there; None where nobody is asked."""
    if path in _UNGUARDED or path.startswith(ASSETS):
        return None
    if path in _PATHS:
        return _PATHS[path]
    return next((scope for folder, scope in _FOLDERS.items() if path.startswith(folder)), "admin")
