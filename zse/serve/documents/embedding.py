"""Vectors of chunks and questions, made by a model of this server like any other request's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zse.engine.vectors import unit
from zse.errors import InvalidParameterError, NotFoundError
from zse.records import record
from zse.serve.asking import let_go, model_for
from zse.serve.http.requests import state_of
from zse.serve.vectors.protocol import EmbeddingRequest
from zse.serve.vectors.reading import encode_texts, read_vectors

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from starlette.requests import Request

    from zse.serve.state import AppState

AT_ONCE = 32
"""Texts that are read together: other requests come between one group and the next."""
NO_EMBEDDER = "none"
"""What is asked for where words alone are to count."""


@record
class Embedded:
    """Vectors, and who made them; none where no model did."""

    embedder: str = ""
    vectors: Sequence[array[float]] = ()
    num_tokens: int = 0


def embedder_here(state: AppState) -> str:
    """Return the name of a model of this server that is made for vectors; empty without one."""
    names = (entry.model.name for entry in state.models if entry.model.task == "vectors")
    return next(names, "")


async def embed_chunks(request: Request, texts: Sequence[str], asked: str | None) -> Embedded:
    """Return vectors of texts, by the model that was asked for, else by one made for it.

    Raises:
        ZSEError: As an embeddings request of this model.
    """
    name = embedder_here(state_of(request)) if asked is None else asked
    if name in ("", NO_EMBEDDER):
        return Embedded()
    return await _embed(request, name, texts)


async def embed_question(
    request: Request, text: str, asked: str | None, kept: Sequence[str]
) -> Embedded:
    """Return the vector of a question, by the model that made those of the documents.

    Args:
        request: What asks.
        text: The question.
        asked: The model that was asked for.
        kept: Models that made vectors of documents, that of the most first.

    Raises:
        ZSEError: As an embeddings request; but a model that was not asked for and cannot be had
            is gone without.
    """
    if not text.strip() or asked == NO_EMBEDDER:
        return Embedded()
    if asked is not None:
        return await _embed(request, asked, [text])
    for name in kept:
        try:
            return await _embed(request, name, [text])
        except NotFoundError:
            continue
    return Embedded()


async def _embed(request: Request, name: str, texts: Sequence[str]) -> Embedded:
    model = await model_for(request, name)
    if model.task == "scores":
        raise InvalidParameterError(
            f"The model '{model.name}' is a reranker, which makes no vectors.", param="embedder"
        )
    made: list[array[float]] = []
    num_tokens = 0
    for start in range(0, len(texts), AT_ONCE):
        group = list(texts[start : start + AT_ONCE])
        body = EmbeddingRequest(input=list(group), truncate=True)
        prompts = await encode_texts(request, body, model, group, params=["text"] * len(group))
        found = await read_vectors(request, body, model, prompts, param="text")
        made += await asyncio.to_thread(lambda rows: [unit(row) for row in rows], found.vectors)
        num_tokens += found.num_tokens
    let_go(request)
    return Embedded(embedder=model.name, vectors=made, num_tokens=num_tokens)
