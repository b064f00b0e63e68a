"""The routes of Ollama's API. Their modules are imported by their first request."""

from __future__ import annotations

from zse.serve.http.lazy_handlers import Late, imported
from zse.serve.http.routes import HotRoute

_PROTOCOL = "zse.serve.ollama.protocol"
_GENERATE = "zse.serve.ollama.generate"
_EMBED = "zse.serve.ollama.embed"
_MODELS = "zse.serve.ollama.models"
_LINES = "application/x-ndjson"

OLLAMA_ROUTES = (
    HotRoute(
        path="/api/chat",
        handler=Late(_GENERATE, "ollama_chat"),
        summary="Answer a conversation, as Ollama's API does.",
        method="POST",
        body=imported(_PROTOCOL, "OllamaChatRequest"),
        streams=True,
        stream_type=_LINES,
    ),
    HotRoute(
        path="/api/generate",
        handler=Late(_GENERATE, "ollama_generate"),
        summary="Answer a question or continue a text, as Ollama's API does.",
        method="POST",
        body=imported(_PROTOCOL, "OllamaGenerateRequest"),
        streams=True,
        stream_type=_LINES,
    ),
    HotRoute(
        path="/api/embed",
        handler=Late(_EMBED, "ollama_embed"),
        summary="Make vectors of texts, as Ollama's API does.",
        method="POST",
        body=imported(_PROTOCOL, "OllamaEmbedRequest"),
    ),
    HotRoute(
        path="/api/embeddings",
        handler=Late(_EMBED, "ollama_embeddings"),
        summary="Make the vector of a text, as Ollama's API did.",
        method="POST",
        body=imported(_PROTOCOL, "OllamaEmbeddingsRequest"),
    ),
    HotRoute(
        path="/api/show",
        handler=Late(_MODELS, "ollama_show"),
        summary="Describe a model, as Ollama's API does.",
        method="POST",
        body=imported(_PROTOCOL, "OllamaShowRequest"),
    ),
    HotRoute(
        path="/api/tags",
        handler=Late(_MODELS, "ollama_tags"),
        summary="List the models, as Ollama's API does.",
    ),
    HotRoute(
        path="/api/ps",
        handler=Late(_MODELS, "ollama_ps"),
        summary="List the models that are loaded, as Ollama's API does.",
    ),
    HotRoute(
        path="/api/version",
        handler=Late(_MODELS, "ollama_version"),
        summary="Say whose API this is: a version of Ollama.",
    ),
)
