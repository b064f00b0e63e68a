"""What /mcp offers: each tool is one request to a route of this server, and its answer in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from zse.records import record
from zse.tools.registry import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

_Prompt = Annotated[str, Meta(min_length=1, max_length=1_000_000)]


@record
class Inner:
    """A request to one of this server's own routes."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    told: Callable[[Any], object] = lambda answer: answer
    """Makes of the answer's JSON what the client is told: a text, or what JSON can hold."""


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Annotated[_Prompt, Meta(description="What is asked.")]
    system: Annotated[str, Meta(max_length=100_000, description="How the model is to answer.")] = ""
    model: Annotated[
        str, Meta(max_length=256, description="A name of list_models; empty for the default.")
    ] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=131_072)] | None = None
    documents: Annotated[
        bool, Meta(description="Whether excerpts of the key's documents go with the question.")
    ] = False


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class SearchDocuments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=8000, description="What is looked for.")]
    most: Annotated[int, Meta(ge=1, le=50, description="Excerpts at most.")] = 5


def _ask(asked: Ask) -> Inner:
    messages = [{"role": "system", "content": asked.system}] if asked.system else []
    messages.append({"role": "user", "content": asked.prompt})
    body: dict[str, Any] = {"messages": messages}
    if asked.max_tokens is not None:
        body["max_tokens"] = asked.max_tokens
    if asked.model:
        body["model"] = asked.model
    if asked.documents:
        body["documents"] = True
    return Inner(method="POST", path="/v1/chat/completions", body=body, told=_said)


def _said(answer: Any) -> str:
    message = answer["choices"][0]["message"]
    sources = [f"[{one['number']}] {one['name']}" for one in message.get("documents") or ()]
    return "\n".join([message["content"] or "", *sources])


def _list_models(_: Nothing) -> Inner:
    return Inner(
        method="GET",
        path="/v1/models",
        told=lambda answer: [one["id"] for one in answer["data"]],
    )


def _search(asked: SearchDocuments) -> Inner:
    return Inner(
        method="POST",
        path="/api/rag/search",
        body={"query": asked.query, "top_k": asked.most},
        told=lambda answer: answer["results"],
    )


OFFERED = {
    tool.name: tool
    for tool in (
        Tool("ask", "Ask a language model of this server, and return its answer.", Ask, _ask),
        Tool("list_models", "List the models that can be asked.", Nothing, _list_models),
        Tool(
            "server_status",
            "Tell what the server is doing: models, queue, speed, memory. JSON.",
            Nothing,
            lambda _: Inner(method="GET", path="/api/stats"),
        ),
        Tool(
            "search_documents",
            "Find excerpts of the documents kept on the server, by words and by meaning. JSON.",
            SearchDocuments,
            _search,
        ),
    )
}
"""By name; to run one is to say which request it is."""
