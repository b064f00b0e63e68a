"""/api/rag: documents that a key keeps here, and what is found in them."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator, Field

from zse.errors import InvalidParameterError, MissingDependencyError
from zse.serve.access.caller import caller_of
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.documents.blocks import MAX_TEXT_CHARACTERS
from zse.serve.documents.chunks import CHUNK_CHARACTERS, OVERLAP_CHARACTERS, chunks_of
from zse.serve.documents.embedding import embed_chunks
from zse.serve.documents.excerpts import excerpts_text
from zse.serve.documents.libraries import Libraries
from zse.serve.documents.library import MAX_CHUNKS
from zse.serve.documents.parsing import Kind, kind_of
from zse.serve.documents.ranking import Hit, within
from zse.serve.documents.reading import read_document
from zse.serve.documents.searching import MAX_HITS, Results, Search, library_of, search
from zse.serve.http.errors import BadRequestError
from zse.serve.http.multipart import Part, parts_of
from zse.serve.http.requests import state_of

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/rag",
    tags=["documents"],
    dependencies=[Depends(Guard("inference"))],
)

LOG = logging.getLogger("zse.serve")

MAX_NAME = 200
MAX_METADATA = 16
MAX_OFFSET = 1 << 31
_Name = Annotated[str, Field(max_length=MAX_NAME)]
_Id = Annotated[str, Field(max_length=64)]
_Model = Annotated[str, Field(max_length=512)]
_Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


def _few(metadata: object) -> object:
    """Refuse many texts at once, of which each might be an error of its own.

    Raises:
        ValueError: There are too many.
    """
    if isinstance(metadata, dict) and len(metadata) > MAX_METADATA:
        raise ValueError(f"it has more than {MAX_METADATA} texts")
    return metadata


class Cutting(AskedShape):
    """How a document is cut, and what makes vectors of its chunks."""

    metadata: Annotated[_Metadata, Field(max_length=MAX_METADATA), BeforeValidator(_few)] = Field(
        default_factory=dict
    )
    """Texts of the caller's own, told with the document."""
    chunk_characters: Annotated[int, Field(ge=200, le=8000)] = CHUNK_CHARACTERS
    """The longest chunk."""
    overlap_characters: Annotated[int, Field(ge=0, le=2000)] | None = None
    """What a chunk says again of the one before; less than half of the longest chunk. 150, or a
    sixth of the longest chunk where that is less."""
    embedder: _Model | None = None
    """The model that makes vectors; ``none`` goes by words alone; without it one that is made for
    vectors, where this server has one."""


class NewDocument(Cutting):
    name: _Name
    content: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)]
    kind: Literal["text", "markdown", "html"] = "text"


class DocumentInfo(Shape):
    id: str
    name: str
    kind: str
    metadata: dict[str, str]
    num_bytes: int
    """Of the file as it came; it is not kept."""
    num_characters: int
    """Of its chunks."""
    num_chunks: int
    num_pages: int
    """0 where its kind has none."""
    embedder: str
    """The model that made its vectors; empty where there are none."""
    created: float
    """Unix seconds."""


class AllDocuments(Shape):
    documents: list[DocumentInfo]
    """The newest first."""
    num_documents: int
    num_chunks: int


class Question(AskedShape):
    query: Annotated[str, Field(min_length=1, max_length=8000)]
    top_k: Annotated[int, Field(ge=1, le=MAX_HITS)] = 5
    documents: Annotated[list[_Id], Field(min_length=1, max_length=100)] | None = None
    """Ids of documents to look in; all without it."""
    embedder: _Model | None = None
    """As when documents are added; without it the model that made most of their vectors."""
    reranker: _Model | None = None
    """The model that reads the question with each of the best chunks and orders them; ``none`` for
    none; without it one of this server that is made for it, where there is one."""


class ContextQuestion(Question):
    max_characters: Annotated[int, Field(ge=200, le=200_000)] = 6000
    """Of the excerpts together."""


class FoundChunk(Shape):
    number: int
    """What an answer cites it by, from 1."""
    document: str
    name: str
    chunk: int
    """Its place in the document, from 0."""
    page: int | None
    heading: str
    score: float
    """Comparable within one search only."""
    text: str


class Findings(Shape):
    results: list[FoundChunk]
    embedder: str
    """The model whose vectors counted; empty where words alone did."""
    reranker: str
    """The model that gave the order and the scores, from 0 to 1; empty where none did."""


class Context(Shape):
    context: str
    """What a chat with ``documents`` puts behind the question; empty where nothing was found."""
    sources: list[FoundChunk]


@router.post("/documents", status_code=201, summary="Keep a text as a document.")
async def add_document(request: Request, body: NewDocument) -> DocumentInfo:
    data = body.content.encode("utf-8", "replace")
    return await _add(request, body.name, body.kind, data, body)


@router.post(
    "/documents/upload",
    status_code=201,
    summary="Keep a file as a document: PDF, DOCX, HTML, Markdown or text.",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file"],
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "options": {
                                "type": "string",
                                "description": "JSON: metadata, chunk_characters, "
                                "overlap_characters, embedder.",
                            },
                        },
                    }
                }
            },
        }
    },
)
@router.post("/upload", status_code=201, include_in_schema=False)
async def upload_document(request: Request) -> DocumentInfo:
    parts = parts_of(request.headers.get("content-type", ""), await request.body())
    file = next((part for part in parts if part.name == "file" and part.file_name), None)
    if file is None:
        raise BadRequestError("The form has no field 'file' with a file.", param="file")
    name = str(file.file_name)[-MAX_NAME:]
    return await _add(request, name, kind_of(name, file.data), file.data, _cutting(parts))


@router.get("/documents", summary="The documents of this key.")
async def list_documents(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
) -> AllDocuments:
    library = await library_of(request)
    rows = await asyncio.to_thread(library.newest, limit=limit, offset=offset)
    there = await asyncio.to_thread(library.count)
    return AllDocuments(
        documents=[DocumentInfo(**row) for row in rows],
        num_documents=there["documents"],
        num_chunks=there["chunks"],
    )


@router.get("/documents/{document}", summary="What is known of a document.")
async def get_document(request: Request, document: str) -> DocumentInfo:
    library = await library_of(request)
    return DocumentInfo(**await asyncio.to_thread(library.get, document))


@router.delete("/documents/{document}", status_code=204, summary="Forget a document.")
async def delete_document(request: Request, document: str) -> Response:
    library = await library_of(request)
    await asyncio.to_thread(library.delete, document)
    return Response(status_code=204)


@router.post("/search", summary="Find chunks by words and by meaning.")
async def search_documents(request: Request, body: Question) -> Findings:
    results = await _search(request, body)
    return Findings(
        results=_told(results.hits), embedder=results.embedder, reranker=results.reranker
    )


@router.post("/context", summary="What a model is given of the documents for a question.")
async def context_of(request: Request, body: ContextQuestion) -> Context:
    hits = within((await _search(request, body)).hits, body.max_characters)
    return Context(context=excerpts_text(hits), sources=_told(hits))


async def _add(
    request: Request, name: str, kind: Kind, data: bytes, cutting: Cutting
) -> DocumentInfo:
    usual = min(OVERLAP_CHARACTERS, cutting.chunk_characters // 6)
    overlap = usual if cutting.overlap_characters is None else cutting.overlap_characters
    if overlap * 2 >= cutting.chunk_characters:
        raise InvalidParameterError(
            f"'overlap_characters' is {overlap}, expected less than half of "
            f"'chunk_characters' ({cutting.chunk_characters}).",
            param="overlap_characters",
        )
    libraries = state_of(request).one_of(Libraries)
    await asyncio.to_thread(libraries.check_room)
    loop = asyncio.get_running_loop()
    read = partial(loop.run_in_executor, None, read_document, kind, data)
    try:
        blocks = await libraries.reading.run(caller_of(request.scope).tenant, read)
    except MissingDependencyError as error:
        LOG.warning("a document cannot be read", extra={"reason": error.message})
        raise BadRequestError(
            f"This server reads no {kind}: it is installed without the extra 'rag'.",
            param="file",
        ) from None
    cut = partial(
        chunks_of,
        blocks,
        size_characters=cutting.chunk_characters,
        overlap_characters=overlap,
    )
    chunks = await asyncio.to_thread(lambda: list(cut()))
    if len(chunks) > MAX_CHUNKS:
        raise InvalidParameterError(f"A document has up to {MAX_CHUNKS:,} chunks.", param="content")
    texts = [f"{one.heading}\n{one.text}" if one.heading else one.text for one in chunks]
    embedded = await embed_chunks(request, texts, cutting.embedder)
    library = await library_of(request)
    row = await asyncio.to_thread(
        partial(
            library.add,
            chunks,
            embedded.vectors,
            embedder=embedded.embedder,
            name=" ".join(name.split()) or "untitled",
            kind=kind,
            metadata=cutting.metadata,
            num_bytes=len(data),
        )
    )
    return DocumentInfo(**row)


def _cutting(parts: list[Part]) -> Cutting:
    """Read the field ``options`` of a form."""
    part = next((one for one in parts if one.name == "options"), None)
    if part is None:
        return Cutting()
    try:
        return Cutting.model_validate(json.loads(part.data))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(
            f"'options' cannot be read: {str(error)[:200]}", param="options"
        ) from None


async def _search(request: Request, body: Question) -> Results:
    asked = Search(
        question=body.query,
        most=body.top_k,
        documents=body.documents,
        embedder=body.embedder,
        reranker=body.reranker,
    )
    return await search(request, asked)


def _told(hits: Any) -> list[FoundChunk]:
    found: list[Hit] = list(hits)
    return [FoundChunk(**hit.source(number)) for number, hit in enumerate(found, 1)]
