"""Chat completions that stand on documents: found for the last question, and given with it.

Excerpts stand in the user's message, never in the system's. The answer tells them in ``documents``
of its message, or of the first delta, which clients that do not know the field skip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from zse.records import record
from zse.serve.documents.excerpts import excerpts_text
from zse.serve.documents.ranking import within
from zse.serve.documents.searching import MAX_HITS, Search, search
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import check_range
from zse.serve.http.requests import state_of
from zse.serve.models import DEFAULT_ALIAS
from zse.serve.openai.protocol import ChatRequest, ContentPart, DocumentsAsked, Message

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_QUESTION_CHARACTERS = 8000
"""Of a longer question the end is looked for, where most people ask."""
USUAL_CHARACTERS = 6000
MOST_CHARACTERS = 200_000
_CHARACTERS_PER_TOKEN = 3
_MAX_IDS = 100


@record
class Cited:
    """A conversation with its excerpts."""

    mapping: dict[str, Any]
    body: ChatRequest
    sources: list[dict[str, Any]]
    """What the answer tells, each with the number that the model cites it by."""


async def cite(request: Request, mapping: dict[str, Any], body: ChatRequest) -> Cited:
    """Find what answers the last question of a conversation, and put it behind that.

    Raises:
        BadRequestError: No user asks anything, or a field of ``documents`` is out of its range.
        UnknownIdError: A document is none of the caller's.
        ZSEError: As ``embed_question``.
    """
    asked = body.documents if isinstance(body.documents, DocumentsAsked) else DocumentsAsked()
    check_range("documents.top_k", asked.top_k, 1, MAX_HITS)
    check_range("documents.max_characters", asked.max_characters, 200, MOST_CHARACTERS)
    if asked.ids is not None and not 0 < len(asked.ids) <= _MAX_IDS:
        raise BadRequestError(
            f"'documents.ids' names {len(asked.ids)} documents, expected 1 to {_MAX_IDS}.",
            param="documents.ids",
        )
    place = _last_question(body)
    wanted = Search(
        question=_words_of(body.messages[place])[-MAX_QUESTION_CHARACTERS:],
        most=asked.top_k,
        documents=asked.ids,
        embedder=asked.embedder,
        reranker=asked.reranker,
    )
    found = await search(request, wanted)
    hits = within(found.hits, _room(request, body, asked))
    if not hits:
        return Cited(mapping=mapping, body=body, sources=[])
    messages = list(body.messages)
    messages[place] = _with_text(messages[place], excerpts_text(hits))
    sources = [hit.source(number) for number, hit in enumerate(hits, 1)]
    changed = msgspec.structs.replace(body, messages=messages)
    counted = {"messages": msgspec.to_builtins(messages)}
    return Cited(mapping={**mapping, **counted}, body=changed, sources=sources)


def _last_question(body: ChatRequest) -> int:
    places = [i for i, message in enumerate(body.messages) if message.role == "user"]
    if not places:
        raise BadRequestError(
            "'documents' looks for what the user asks, and no message is the user's.",
            param="documents",
        )
    return places[-1]


def _words_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content or () if part.type == "text")


def _with_text(message: Message, text: str) -> Message:
    content = message.content
    if isinstance(content, list):
        added: str | list[ContentPart] = [*content, ContentPart(type="text", text=f"\n\n{text}")]
    else:
        added = f"{content or ''}\n\n{text}"
    return msgspec.structs.replace(message, content=added)


def _room(request: Request, body: ChatRequest, asked: DocumentsAsked) -> int:
    """Return how many characters excerpts may have: at most half of the model's context."""
    wanted = asked.max_characters or USUAL_CHARACTERS
    model = state_of(request).models.answering(body.model or DEFAULT_ALIAS)
    if model is None:  # it is yet to come
        return wanted
    return min(wanted, model.max_context * _CHARACTERS_PER_TOKEN // 2)
