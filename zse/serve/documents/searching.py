"""A search from end to end: the question's vector, both rankings, one list, a second look at it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zse.records import record
from zse.serve.access.caller import caller_of
from zse.serve.documents.embedding import embed_question
from zse.serve.documents.libraries import Libraries
from zse.serve.documents.ranking import Hit, best_of
from zse.serve.documents.reranking import LEAST_READ, rerank
from zse.serve.http.requests import state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from zse.serve.documents.library import Library

MAX_HITS = 50
_CANDIDATES = 50
"""Of each ranking, before they are put together."""


@record
class Search:
    """What is looked for."""

    question: str
    most: int = 5
    documents: Sequence[str] | None = None
    """Ids; None looks in all."""
    embedder: str | None = None
    """Name of a model, ``none`` for words alone; None takes what made the documents' vectors."""
    reranker: str | None = None
    """Name of a model, ``none`` for no second look; None takes one that is here."""


@record
class Results:
    """What was found."""

    hits: Sequence[Hit]
    embedder: str
    """The model whose vectors counted; empty where words alone did."""
    reranker: str = ""
    """The model that gave the hits their order and their scores; empty where none did."""


async def library_of(request: Request) -> Library:
    """Return the library of whoever asks."""
    libraries = state_of(request).one_of(Libraries)
    return await asyncio.to_thread(libraries.of, caller_of(request.scope).tenant)


async def search(request: Request, asked: Search) -> Results:
    """Return the chunks that answer a question best.

    Raises:
        UnknownIdError: A document is none of the caller's.
        ZSEError: As ``embed_question`` and ``rerank``.
    """
    library = await library_of(request)
    for document in asked.documents or ():
        await asyncio.to_thread(library.get, document)
    kept = await asyncio.to_thread(library.embedders)
    embedded = await embed_question(request, asked.question, asked.embedder, kept)

    def found() -> list[Hit]:
        candidates = library.find(
            asked.question,
            embedded.vectors[0] if embedded.vectors else None,
            embedder=embedded.embedder,
            most=max(_CANDIDATES, asked.most),
            documents=asked.documents,
        )
        return best_of(library, candidates, most=max(LEAST_READ, asked.most))

    hits = await asyncio.to_thread(found)
    ordered = await rerank(request, asked.question, hits, asked.reranker)
    return Results(
        hits=ordered.hits[: asked.most], embedder=embedded.embedder, reranker=ordered.reranker
    )
