"""The routes of responses that are kept: shown, read again, listed, cancelled, forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.access.caller import caller_of
from zse.serve.http.errors import BadRequestError, UnknownIdError
from zse.serve.http.requests import json_response, state_of
from zse.serve.http.streaming import EventStream
from zse.serve.responses.store import ResponseStore

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.serve.responses.items import Item
    from zse.serve.responses.store import StoredResponse

_MOST_LISTED = 100
_LISTED = 20
_MAX_DIGITS = 15


async def get_response(request: Request) -> ASGIApp:
    """Handle ``GET /v1/responses/{id}``, whole or as events behind ``starting_after``.

    Raises:
        UnknownIdError: The caller has no such response, or has it no longer.
        BadRequestError: Its events were not kept, or are not any more.
        EventsGoneError: Those that are asked for are not.
    """
    stored = _stored(request)
    if request.query_params.get("stream") != "true":
        return json_response(stored.response)
    log = stored.run.log if stored.run is not None else None
    if log is None:
        raise BadRequestError(
            "The events of this response are not kept: it was not made with 'background' and "
            "'stream', or it ended too long ago.",
            param="stream",
        )
    after = _number(request, "starting_after", -1, least=-1, most=log.last)
    return EventStream(log.read(after=after), terminate=state_of(request).terminate, headers={})


async def delete_response(request: Request) -> ASGIApp:
    """Handle ``DELETE /v1/responses/{id}``.

    Raises:
        UnknownIdError: As ``get_response``.
    """
    stored = _stored(request)
    if stored.run is not None:
        stored.run.cancel()
    state_of(request).one_of(ResponseStore).drop(caller_of(request.scope).tenant, stored.id)
    return json_response({"id": stored.id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> ASGIApp:
    """Handle ``POST /v1/responses/{id}/cancel``.

    Raises:
        UnknownIdError: As ``get_response``.
        BadRequestError: The response is not made in the background.
    """
    stored = _stored(request)
    if not stored.response["background"]:
        raise BadRequestError(
            "Only a response that was made with 'background' can be cancelled; to stop another, "
            "close its connection."
        )
    if stored.run is not None:
        stored.run.cancel()
    return json_response(stored.response)


async def list_input_items(request: Request) -> ASGIApp:
    """Handle ``GET /v1/responses/{id}/input_items``.

    Raises:
        UnknownIdError: As ``get_response``; likewise where ``after`` names none of the items.
        BadRequestError: A parameter is out of range.
    """
    items = _stored(request).input_items
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequestError("'order' is neither 'asc' nor 'desc'.", param="order")
    limit = _number(request, "limit", _LISTED, least=1, most=_MOST_LISTED)
    found = items if order == "asc" else items[::-1]
    if (after := request.query_params.get("after")) is not None:
        ids = [item["id"] for item in found]
        if after not in ids:
            raise UnknownIdError("item", after)
        found = found[ids.index(after) + 1 :]
    shown = found[:limit]
    page = {
        "object": "list",
        "data": [_listed(item) for item in shown],
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(found) > limit,
    }
    return json_response(page)


def _stored(request: Request) -> StoredResponse:
    store = state_of(request).one_of(ResponseStore)
    return store.get(caller_of(request.scope).tenant, request.path_params["response_id"])


def _listed(item: Item) -> Item:
    """Return an item as lists show it: what a message says is always a list of parts."""
    if item["type"] == "message" and isinstance(item["content"], str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        item = {**item, "content": [{"type": kind, "text": item["content"]}]}
    return {"status": "completed", **item}


def _number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    is_number = text.removeprefix("-").isdecimal() and text.isascii() and len(text) < _MAX_DIGITS
    if not is_number or not least <= int(text) <= most:
        raise BadRequestError(
            f"'{name}' is '{text[:40]}', expected a number from {least} to {most}.", param=name
        )
    return int(text)
