"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from zse.engine.vectors import unit
from zse.serve.asking import model_for
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import check_range
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import ignored_header, read_body
from zse.serve.vectors.protocol import MAX_INPUTS, EmbeddingRequest, read_vector_request
from zse.serve.vectors.reading import Vectors, encode_texts, read_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from zse.serve.state import LoadedModel

_encode = msgspec.json.Encoder().encode


async def create_embedding(request: Request) -> Response:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_vector_request, mapping, EmbeddingRequest)
    model = await model_for(request, body.model)
    if model.task == "scores":
        raise BadRequestError(
            f"The model '{model.name}' is a reranker, which makes no vectors: use /v1/rerank.",
            param="model",
        )
    check_range("dimensions", body.dimensions, 1, model.vector_size)
    if body.normalize is False and body.dimensions not in (None, model.vector_size):
        raise BadRequestError(
            "'dimensions' below the model's own need 'normalize'.", param="normalize"
        )
    items = _items(body)
    prompts = await encode_texts(request, body, model, items, params=["input"] * len(items))
    found = await read_vectors(request, body, model, prompts, param="input")
    answer = await asyncio.to_thread(_answer, body, model, found)
    return Response(answer, media_type="application/json", headers=ignored_header(ignored))


def _items(body: EmbeddingRequest) -> list[Any]:
    """Return each text, or its token ids, of what is one, a list of ids or a list of either."""
    given = body.input
    is_one = isinstance(given, str) or (given and all(isinstance(item, int) for item in given))
    items: list[Any] = [given] if is_one else list(given)
    if not 0 < len(items) <= MAX_INPUTS:
        raise BadRequestError(
            f"'input' holds {len(items)} texts, expected 1 to {MAX_INPUTS}.", param="input"
        )
    if any(isinstance(item, int) for item in items):
        raise BadRequestError("'input' mixes token ids with texts or lists.", param="input")
    return items


def _answer(body: EmbeddingRequest, model: LoadedModel, found: Vectors) -> bytes:
    """Return the answer as JSON.

    It is made a vector at a time, since encoding keeps every other thread waiting, and the whole
    may be a hundred megabytes.
    """
    entries = [
        _encode({"object": "embedding", "index": index, "embedding": _written(body, vector)})
        for index, vector in enumerate(found.vectors)
    ]
    usage = {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens}
    rest = _encode({"model": model.name, "usage": usage})
    return b'{"object":"list","data":[' + b",".join(entries) + b"]," + rest[1:]


def _written(body: EmbeddingRequest, vector: Sequence[float]) -> str | list[float]:
    numbers = _numbers(body, vector)
    return _base64(numbers) if body.encoding_format == "base64" else numbers.tolist()


def _numbers(body: EmbeddingRequest, vector: Sequence[float]) -> array[float]:
    if body.normalize is False:
        return array("f", vector)
    return unit(vector, body.dimensions)


def _base64(numbers: array[float]) -> str:
    """Return float32 numbers, the lowest byte of each first."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
