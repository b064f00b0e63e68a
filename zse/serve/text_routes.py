"""The routes that tell something of texts and generate none: vectors, nearness, tokens."""

from __future__ import annotations

from zse.serve.http.lazy_handlers import Late, imported
from zse.serve.http.routes import HotRoute

_RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
"""vLLM's and Jina's, Cohere's, and the bare one of older clients."""

TEXT_ROUTES = (
    HotRoute(
        path="/v1/embeddings",
        handler=Late("zse.serve.vectors.embeddings", "create_embedding"),
        summary="Make vectors of texts.",
        method="POST",
        body=imported("zse.serve.vectors.protocol", "EmbeddingRequest"),
    ),
    *(
        HotRoute(
            path=path,
            handler=Late("zse.serve.vectors.ranking", "create_rerank"),
            summary="Order documents by their nearness to a query.",
            method="POST",
            body=imported("zse.serve.vectors.protocol", "RerankRequest"),
        )
        for path in _RERANK_PATHS
    ),
    HotRoute(
        path="/v1/score",
        handler=Late("zse.serve.vectors.ranking", "create_score"),
        summary="Say how near pairs of texts are.",
        method="POST",
        body=imported("zse.serve.vectors.protocol", "ScoreRequest"),
    ),
    HotRoute(
        path="/tokenize",
        handler=Late("zse.serve.openai.tokens", "tokenize"),
        summary="Return the tokens of a text or a conversation.",
        method="POST",
        body=imported("zse.serve.openai.tokens", "TokenizeRequest"),
    ),
    HotRoute(
        path="/detokenize",
        handler=Late("zse.serve.openai.tokens", "detokenize"),
        summary="Return the text of tokens.",
        method="POST",
        body=imported("zse.serve.openai.tokens", "DetokenizeRequest"),
    ),
    HotRoute(
        path="/tokenizer_info",
        handler=Late("zse.serve.openai.tokens", "tokenizer_info"),
        summary="Describe the tokenizer.",
    ),
)
