"""The page of documents: what a key keeps here, and what is found in it.

Files go to the route of the API as a form; the page itself only shows and deletes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from zse.errors import ZSEError
from zse.serve.documents.searching import Search, library_of, search
from zse.serve.http.errors import describe
from zse.serve.ui.forms import read_form
from zse.serve.ui.pages import refuse_forged, render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

NUM_SHOWN = 200
_NUM_FOUND = 8
_MAX_QUESTION = 2000


async def show_documents(request: Request) -> Response:
    """Answer ``GET /documents``."""
    return render(request, "documents.html", page="documents", **await _facts(request))


async def show_part(request: Request) -> Response:
    """Answer ``GET /ui/documents``: the table, after a file was added."""
    return render(request, "parts/documents.html", **await _facts(request))


async def delete_document(request: Request) -> Response:
    """Forget a document.

    Raises:
        ForgedRequestError: No page of ours asks for it.
    """
    refuse_forged(request)
    form = await read_form(request)
    problem = ""
    try:
        library = await library_of(request)
        await asyncio.to_thread(library.delete, form.get("id", ""))
    except ZSEError as error:
        problem = describe(error)[1].message
    facts = await _facts(request)
    return render(request, "parts/documents.html", **{**facts, "problem": problem})


async def show_found(request: Request) -> Response:
    """Answer ``GET /ui/documents/search``."""
    question = request.query_params.get("query", "")[:_MAX_QUESTION].strip()
    facts: dict[str, Any] = {"question": question, "hits": [], "problem": ""}
    facts.update(embedder="", reranker="")
    if question:
        try:
            results = await search(request, Search(question=question, most=_NUM_FOUND))
            hits = [hit.source(number) for number, hit in enumerate(results.hits, 1)]
            facts.update(hits=hits, embedder=results.embedder, reranker=results.reranker)
        except ZSEError as error:
            facts["problem"] = describe(error)[1].message
    return render(request, "parts/found.html", **facts)


async def _facts(request: Request) -> dict[str, Any]:
    library = await library_of(request)
    rows = await asyncio.to_thread(library.newest, limit=NUM_SHOWN)
    there = await asyncio.to_thread(library.count)
    return {"documents": rows, "count": there, "problem": ""}
