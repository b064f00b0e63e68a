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
from zse.records import record
from zse.serve.asking import model_for
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import check_range
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import ignored_header, read_body
from zse.serve.vectors.protocol import MAX_INPUTS, EmbeddingRequest, read_vector_request
from zse.serve.vectors.reading import encode_texts, read_vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request

    from zse.serve.state import LoadedModel

_encode = msgspec.json.Encoder().encode


@record
class Embedded:
    """Texts that have become vectors."""

    body: EmbeddingRequest
    model: LoadedModel
    num_tokens: int
    vectors: Sequence[Sequence[float]]
    """As the model has them."""

    def written(self) -> Iterator[str | list[float]]:
        """Yield each vector as the request wants it."""
        for vector in self.vectors:
            numbers = _numbers(self.body, vector)
            is_base64 = self.body.encoding_format == "base64"
            yield _base64(numbers) if is_base64 else numbers.tolist()


async def create_embedding(request: Request) -> Response:
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_vector_request, mapping, EmbeddingRequest)
    answer = await asyncio.to_thread(_answer, await embedded(request, body))
    return Response(answer, media_type="application/json", headers=ignored_header(ignored))


async def embedded(request: Request, body: EmbeddingRequest) -> Embedded:
    """Return the vectors of a checked request's texts.

    Raises:
        BadRequestError: The model makes none, or not such ones.
        ZSEError: There is no such model or no room, or a text is too long.
    """
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
    return Embedded(body=body, model=model, num_tokens=found.num_tokens, vectors=found.vectors)


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


def _answer(found: Embedded) -> bytes:
    """Return the answer as JSON.

    It is made a vector at a time, since encoding keeps every other thread waiting, and the whole
    may be a hundred megabytes.
    """
    entries = [
        _encode({"object": "embedding", "index": index, "embedding": vector})
        for index, vector in enumerate(found.written())
    ]
    usage = {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens}
    rest = _encode({"model": found.model.name, "usage": usage})
    return b'{"object":"list","data":[' + b",".join(entries) + b"]," + rest[1:]


def _numbers(body: EmbeddingRequest, vector: Sequence[float]) -> array[float]:
    if body.normalize is False:
        return array("f", vector)
    return unit(vector, body.dimensions)


def _base64(numbers: array[float]) -> str:
    """Return float32 numbers, the lowest byte of each first."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
