"""POST /api/embed, and /api/embeddings, which came before: vectors of texts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from zse.serve.http.json_body import with_body
from zse.serve.http.requests import ignored_header, read_body
from zse.serve.ollama.models import plain_name
from zse.serve.ollama.protocol import OllamaEmbeddingsRequest, OllamaEmbedRequest, read_ollama
from zse.serve.vectors.embeddings import embedded
from zse.serve.vectors.protocol import EmbeddingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

_encode = msgspec.json.Encoder().encode


async def ollama_embed(request: Request) -> Response:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_ollama, mapping, OllamaEmbedRequest)
    found = await embedded(
        request,
        EmbeddingRequest(
            model=plain_name(request, body.model),
            input=list(body.input) if isinstance(body.input, list) else body.input,
            truncate=body.truncate is not False,
            dimensions=body.dimensions,
        ),
    )
    rest = {
        "total_duration": round((time.perf_counter() - request.state.arrival) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": found.num_tokens,
    }
    vectors = await asyncio.to_thread(_joined, found.written())
    head = _encode({"model": body.model})[:-1] + b',"embeddings":['
    answer = head + vectors + b"]," + _encode(rest)[1:]
    return Response(answer, media_type="application/json", headers=ignored_header(ignored))


async def ollama_embeddings(request: Request) -> Response:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_ollama, mapping, OllamaEmbeddingsRequest)
    asked = EmbeddingRequest(
        model=plain_name(request, body.model), input=body.prompt, truncate=True
    )
    found = await embedded(request, asked)
    answer = b'{"embedding":' + _joined(found.written()) + b"}"
    return Response(answer, media_type="application/json", headers=ignored_header(ignored))


def _joined(vectors: Iterable[object]) -> bytes:
    """Return vectors as JSON, one at a time: encoding keeps every other thread waiting."""
    return b",".join(map(_encode, vectors))
