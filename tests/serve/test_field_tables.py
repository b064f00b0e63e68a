"""The table of fields says what a running server does: each field is sent to each route."""

from __future__ import annotations

import json

import pytest

from zse.serve.app import HOT_ROUTES
from zse.serve.field_tables import TABLES, rows_of

CHAT = [{"role": "user", "content": "Hi"}]
BODIES = {
    "ChatRequest": {"messages": CHAT, "max_tokens": 1},
    "CompletionRequest": {"prompt": "Hi", "max_tokens": 1},
    "EmbeddingRequest": {"input": "Hi"},
    "RerankRequest": {"query": "Hi", "documents": ["Ho", {"text": "He"}]},
    "ScoreRequest": {"text_1": "Hi", "text_2": "Ho"},
    "TokenizeRequest": {"messages": CHAT},
    "DetokenizeRequest": {"tokens": [1]},
    "MessagesRequest": {"messages": CHAT, "max_tokens": 1, "model": "default"},
    "ResponsesRequest": {"input": "Hi", "max_output_tokens": 16},
    "InputTokensRequest": {"input": "Hi"},
    "CountTokensRequest": {"messages": CHAT, "model": "default"},
    "OllamaChatRequest": {"messages": CHAT, "model": "default", "stream": False},
    "OllamaGenerateRequest": {"prompt": "Hi", "model": "default", "stream": False},
    "OllamaEmbedRequest": {"input": "Hi", "model": "default"},
    "OllamaEmbeddingsRequest": {"prompt": "Hi", "model": "default"},
    "OllamaShowRequest": {"model": "default"},
}
"""The least that each route answers."""
ROUTES = {route.path: route.body() for route in HOT_ROUTES if route.method == "POST" and route.body}
ROWS = [
    pytest.param(path, kind, row, id=f"{path} {row.path}")
    for path, kind in ROUTES.items()
    if kind in TABLES
    for row in rows_of(kind)
]
STRANGE = {"a value": "that nobody sends"}
OPENED = {
    "stream_options": {"stream": True, "stream_options": {}},
    "thinking": {"thinking": {"type": "enabled"}},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
}
"""What a body needs for a field inside it to be read."""


def body_with(kind, row, value):
    """The least body, with a value at the row's path, such as ``messages[].content[].text``."""
    body = json.loads(json.dumps(BODIES[kind.__name__]))
    first = row.path.partition(".")[0].removesuffix("[]")
    body |= json.loads(json.dumps(OPENED.get(first, {}))) if "." in row.path else {}
    for path, tag in (*row.tags, (row.path, value)):
        put(body, path, tag)
    return body


def put(body, path, value):
    place = body
    *outer, last = path.split(".")
    for name in outer:
        inner = place.setdefault(name.removesuffix("[]"), [{}] if name.endswith("[]") else {})
        if name.endswith("[]"):
            if not isinstance(inner, list):
                inner = place[name.removesuffix("[]")] = [{}]
            inner = inner[-1]
        place = inner
    place[last] = value


def send(call, path, body):
    return call("POST", path, json=body)


def ignored_by(response):
    return response.headers.get("x-zse-ignored", "").split(", ")


def error_of(response):
    """What went wrong; Ollama's routes say the message alone."""
    error = response.json()["error"]
    return {"message": error} if isinstance(error, str) else error


def test_every_route_with_a_body_has_a_table():
    assert set(ROUTES.values()) == set(TABLES)


def test_no_field_stands_in_a_struct_and_in_a_table():
    for kind in TABLES:
        paths = [(row.path, row.tags) for row in rows_of(kind)]
        assert len(paths) == len(set(paths)), kind


@pytest.mark.parametrize(("path", "kind", "row"), ROWS)
def test_a_field_is_done_with_as_its_table_says(real, path, kind, row):
    response = send(real, path, body_with(kind, row, STRANGE))
    if row.verdict == "without effect":
        assert response.status_code == 200, response.text
        assert row.path in ignored_by(response)
    elif row.verdict == "refused":
        assert response.status_code == 400, response.text
        error = error_of(response)
        place = row.path.replace("[]", "[0]")
        assert place in (error.get("param", row.path), error["message"].split("'")[1])
        assert "not supported" in error["message"]
    elif row.kind not in ("object", "anything") and "object" not in row.kind:
        # Read into a type: a value of another is refused with the path.
        assert response.status_code == 400, response.text
        name = row.path.rpartition(".")[2]
        assert name in error_of(response)["message"]
        assert row.path not in ignored_by(response)
    for value in row.asks_nothing:
        allowed = send(real, path, body_with(kind, row, value))
        assert allowed.status_code == 200, allowed.text
        assert row.path not in ignored_by(allowed)


@pytest.mark.parametrize(("path", "kind"), list(ROUTES.items()), ids=list(ROUTES))
def test_a_field_that_nobody_knows_is_reported_back(real, path, kind):
    response = send(real, path, {**BODIES[kind.__name__], "frobnicate": 1})
    assert response.status_code == 200, response.text
    assert "frobnicate" in ignored_by(response)
