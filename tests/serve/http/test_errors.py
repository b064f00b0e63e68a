"""What the text of an error may hold when it leaves the server."""

import ast
from pathlib import Path

import pytest

import zse
from zse.serve.http.errors import API_PATHS, sanitize
from zse.serve.http.rules import HTTPRules

SOURCES = sorted(Path(zse.__file__).parent.rglob("*.py"))


def texts_of(path):
    """Every text in a source file but its documentation, pieces of f-strings too."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    ]


def test_every_path_of_the_api_survives(call):
    routes = {route.path for route in call.routes if "{" not in route.path}
    for path in routes:
        assert sanitize(f"Use {path}.") == f"Use {path}."
    assert routes | set(call("GET", "/openapi.json").json()["paths"]) >= API_PATHS


def test_every_message_that_names_a_path_of_the_api_is_told_as_it_was_written():
    messages = {
        text
        for path in SOURCES
        if {"serve", "engine", "text"} & {*path.parts}
        for text in texts_of(path)
        if any(f"{api} " in text or f"{api}." in text for api in API_PATHS)
    }
    assert len(messages) >= 3, messages
    assert {sanitize(message) for message in messages} == messages


@pytest.mark.parametrize(
    "text",
    ["/opt/models/x.zse", "/v1/secret", "/v1/completions/../../etc/passwd", "/v1/models.d/key"],
)
def test_paths_of_files_are_hidden(text):
    assert sanitize(f"cannot read {text}: no such file") == "cannot read (path): no such file"


def test_anthropics_routes_answer_errors_in_anthropics_form(call, make_caller):
    response = call("POST", "/v1/messages/batches", json={})
    body = response.json()
    assert response.status_code == 404
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    elsewhere = make_caller(rules=HTTPRules(hosts=frozenset({"example.com"})))
    assert elsewhere("POST", "/v1/messages").json()["error"]["type"] == "invalid_request_error"
