"""Bodies of FastAPI's routes: counted with all others, decoded beside the loop, refused in time."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fastapi.routing import APIRoute

from zse.serve.admin import bodies
from zse.serve.admin.application import create_admin
from zse.serve.admin.bodies import MAX_FIELDS, MAX_VALUES, BoundedRoute
from zse.serve.app import HOT_ROUTES
from zse.serve.http import json_body
from zse.serve.http.bodies import MAX_HELD_BYTES, BodyRoom
from zse.serve.ui.routes import add_pages

SEARCH = "/api/rag/search"
UPLOAD = "/api/rag/documents/upload"
JSON = {"content-type": "application/json"}


def routes_of(router):
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else routes_of(inner)


def test_every_route_that_takes_a_body_is_bounded(state):
    admin = create_admin(state, HOT_ROUTES)
    add_pages(admin)
    taking = [one for one in routes_of(admin) if isinstance(one, APIRoute) and one.body_field]
    assert len(taking) > 10
    assert [one.path for one in taking if not isinstance(one, BoundedRoute)] == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [(SEARCH, JSON["content-type"]), (UPLOAD, "multipart/form-data; boundary=x")],
)
def test_a_long_body_needs_room_beside_those_of_others_and_a_short_one_none(
    state, call, path, kind
):
    room = state.one_of(BodyRoom)
    room.take(MAX_HELD_BYTES)
    long, headers = b'{"query": "%b"}' % (b"x" * 200_000), {"content-type": kind}
    assert call("POST", path, content=long, headers=headers).status_code == 429
    assert call("POST", path, content=b"{}", headers=headers).status_code == 400
    room.take(-MAX_HELD_BYTES)
    assert call("POST", path, content=long, headers=headers).status_code == 400
    room.take(MAX_HELD_BYTES)  # all of it was given back


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"query": %b}' % (b"[" * 40_000 + b"]" * 40_000), "nested too deeply"),
        (b"{%b}" % b",".join(b'"%d": 1' % i for i in range(MAX_FIELDS + 1)), "64 fields"),
        (b'{"documents": [%b]}' % b",".join([b"1"] * (MAX_VALUES + 1)), "10,000 values"),
        (b'{"query": {"a": [%b]}}' % b",".join([b"[]"] * MAX_VALUES), "10,000 values"),
        (b'{"query": "\\ud800"}', "could not be parsed"),
        (b'{"query": "\xff"}', "could not be parsed"),
        (b'{"query": NaN}', "could not be parsed"),
        (b"[1]", "must be a JSON object"),
        (b"{", "could not be parsed"),
    ],
)
def test_what_no_route_is_asked_is_refused_before_each_value_is_an_error(
    call, check_error, body, message
):
    refused = call("POST", SEARCH, content=body, headers=JSON)
    check_error(refused, 400)
    assert message in refused.json()["error"]["message"]


def test_many_texts_about_a_document_are_one_error(call, check_error):
    body = {"name": "a", "content": "b", "metadata": {str(i): 1 for i in range(1000)}}
    refused = call("POST", "/api/rag/documents", json=body)
    check_error(refused, 400, param="metadata")
    assert "more than 16" in refused.json()["error"]["message"]


def test_others_are_answered_while_a_long_body_is_decoded(call, runner, monkeypatch):
    is_decoding, may_go_on = threading.Event(), threading.Event()
    read = json_body.read_mapping

    def slow(body):
        is_decoding.set()
        assert may_go_on.wait(60)
        return read(body)

    monkeypatch.setattr(bodies, "read_mapping", slow)

    async def ask():
        content = b'{"query": "%b"}' % (b"x" * 100_000)
        asking = asyncio.create_task(call.send("POST", SEARCH, content=content, headers=JSON))
        assert await asyncio.to_thread(is_decoding.wait, 60)
        alive = await call.send("GET", "/health/live")
        is_answered = asking.done()
        may_go_on.set()
        return alive.status_code, is_answered, (await asking).status_code

    assert runner.run(ask()) == (200, False, 400)
