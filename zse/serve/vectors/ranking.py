"""POST /v1/rerank and /v1/score: how well texts answer each other.

A reranker scores pairs from 0 to 1. Any other model is taken for an embedder, and a score is the
cosine of two vectors.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from zse.engine.ranking import cosine
from zse.engine.vectors import unit
from zse.serve.asking import model_for
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import check_range
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import ignored_header, json_response, new_id, read_body, state_of
from zse.serve.vectors.pairs import Scorers, scores_of_pairs
from zse.serve.vectors.protocol import (
    MAX_DOCUMENTS,
    RerankRequest,
    ScoreRequest,
    VectorFields,
    read_vector_request,
)
from zse.serve.vectors.reading import encode_texts, read_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.state import LoadedModel


async def create_rerank(request: Request) -> Response:
    """Order documents by their nearness to a query, in the shape of Jina and Cohere."""
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_vector_request, mapping, RerankRequest)
    model = await model_for(request, body.model)
    check_range("top_n", body.top_n, 1, MAX_DOCUMENTS)
    texts = [item if isinstance(item, str) else item.text for item in body.documents]
    _check_count("documents", texts)
    groups = [("query", [body.query]), ("documents", texts)]
    scores, num_tokens = await _scores(
        request, body, model, groups, instruction=body.instruction or ""
    )
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n]
    with_document = body.return_documents is not False
    answer = {
        "id": new_id("rerank"),
        "model": model.name,
        "results": [
            {
                "index": index,
                "relevance_score": scores[index],
                **({"document": {"text": texts[index]}} if with_document else {}),
            }
            for index in order
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return json_response(answer, ignored_header(ignored))


async def create_score(request: Request) -> Response:
    """Say how near pairs of texts are, in the shape of vLLM; one text pairs with each of many."""
    mapping = await read_body(request)
    body, ignored = await with_body(request, read_vector_request, mapping, ScoreRequest)
    model = await model_for(request, body.model)
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    _check_count("text_1", first)
    _check_count("text_2", second)
    if len(first) not in (1, len(second)):
        raise BadRequestError(
            f"'text_1' holds {len(first)} texts and 'text_2' {len(second)}: expected one, or as "
            "many.",
            param="text_1",
        )
    groups = [("text_1", first), ("text_2", second)]
    scores, num_tokens = await _scores(request, body, model, groups)
    answer = {
        "id": new_id("score"),
        "object": "list",
        "created": int(time.time()),
        "model": model.name,
        "data": [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(scores)
        ],
        "usage": {"prompt_tokens": num_tokens, "completion_tokens": 0, "total_tokens": num_tokens},
    }
    return json_response(answer, ignored_header(ignored))


def _check_count(param: str, texts: Sequence[str]) -> None:
    if not 0 < len(texts) <= MAX_DOCUMENTS:
        raise BadRequestError(
            f"'{param}' holds {len(texts)} texts, expected 1 to {MAX_DOCUMENTS}.", param=param
        )


async def _scores(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    groups: Sequence[tuple[str, list[str]]],
    *,
    instruction: str = "",
) -> tuple[list[float], int]:
    """Return the score of each text of the second group with its partner, and all tokens."""
    scorer = state_of(request).one_of(Scorers).of(model)
    if scorer is not None:
        (first, queries), (second, documents) = groups
        partners = queries * len(documents) if len(queries) == 1 else queries
        pairs = list(zip(partners, documents, strict=True))
        return await scores_of_pairs(
            request,
            body,
            model,
            scorer,
            pairs,
            instruction=instruction,
            params=(first, second),
        )
    if instruction:
        raise BadRequestError(
            "This model takes no instruction: write it into the texts.", param="instruction"
        )
    return await _cosines(request, body, model, groups)


async def _cosines(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    groups: Sequence[tuple[str, Sequence[str]]],
) -> tuple[list[float], int]:
    items = [text for _, texts in groups for text in texts]
    params = [name for name, texts in groups for _ in texts]
    prompts = await encode_texts(request, body, model, items, params=params)
    found = await read_vectors(request, body, model, prompts, param=groups[1][0])
    num_first = len(groups[0][1])

    def compared() -> list[float]:
        units = [unit(vector) for vector in found.vectors]
        first, second = units[:num_first], units[num_first:]
        partners: Any = first * len(second) if num_first == 1 else first
        return [cosine(a, b) for a, b in zip(partners, second, strict=True)]

    return await asyncio.to_thread(compared), found.num_tokens
