"""Every answer that is not 2xx has the body of OpenAI's schema, whatever went wrong and where.

Ollama's routes have Ollama's: one sentence.
"""

import asyncio
import importlib
import json
import pkgutil

import jsonschema
import pytest
from starlette.exceptions import HTTPException

import zse.serve
from zse.errors import ZSEError
from zse.serve.access.rules import OLLAMA_PATHS
from zse.serve.app import HOT_ROUTES
from zse.serve.http.errors import error_response

SCHEMA = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "type": {"type": "string", "minLength": 1},
                "message": {"type": "string", "minLength": 1},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
"""OpenAI's published ErrorResponse, with nothing beside it."""
OLLAMAS = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {"error": {"type": "string", "minLength": 1}},
}
SPEAKS_OTHERWISE = ("/v1/messages",)
READS_NO_BODY = ("/sleep", "/wake_up")
HOSTILE = {
    "no body": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "null": b"null",
    "an empty object": b"{}",
    "bad UTF-8": b'{"model": "\xff"}',
    "deep": b"[" * 100_000,
    "wrong types": b'{"model": 1, "input": 1, "prompt": 1, "messages": 1, "query": 1}',
    "another model": b'{"model": "no such model", "input": "a", "prompt": "a", "query": "a",'
    b' "messages": [{"role": "user", "content": "a"}], "documents": ["a"], "tokens": [1],'
    b' "text_1": "a", "text_2": "a", "max_tokens": 1}',
}


def check(response, path=""):
    assert response.headers["content-type"] == "application/json"
    schema = OLLAMAS if path in OLLAMA_PATHS else SCHEMA
    jsonschema.validate(json.loads(response.content), schema)


def all_errors():
    """Every class of deliberate errors that the server can raise, its own modules' among them."""
    for module in pkgutil.walk_packages(zse.serve.__path__, "zse.serve."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [ZSEError]
    for kind in found:
        found += kind.__subclasses__()
    return sorted({kind for kind in found if kind.__init__ is ZSEError.__init__}, key=str)


def body_of(response):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/v1/models", "state": {}, "headers": []}
    asyncio.run(response(scope, None, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_becomes_the_schemas_body(kind):
    status, body = body_of(error_response(kind("something went wrong", hint="do this")))
    assert 400 <= status < 600
    jsonschema.validate(json.loads(body), SCHEMA)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 411, 413, 415, 418, 429, 431])
def test_every_status_of_http_has_the_schemas_body(status):
    found, body = body_of(error_response(HTTPException(status, "no")))
    assert found == status
    jsonschema.validate(json.loads(body), SCHEMA)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "path",
    [
        route.described_path.replace("{response_id}", "resp_1")
        for route in HOT_ROUTES
        if route.method == "POST" and not route.path.startswith((*SPEAKS_OTHERWISE, *READS_NO_BODY))
    ],
)
def test_whatever_a_route_is_sent_it_refuses_with_the_schemas_body(real, path, hostile):
    response = real("POST", path, content=hostile, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500, response.text
    check(response, path)


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "PUT", "OPTIONS", "GET", "POST"])
def test_a_wrong_method_and_an_unknown_path_have_it_too(call, method):
    for path in ("/v1/nothing", "/nothing", "/v1/chat/completions/more", "/%ff"):
        response = call(method, path)
        assert response.status_code == 404
        check(response)
    for route in HOT_ROUTES:
        if not any(route.path == other.path and other.method == method for other in HOT_ROUTES):
            response = call(method, route.described_path.replace("{", "").replace("}", ""))
            # One route's path may be what another takes for a name.
            assert response.status_code in (404, 405), route.path
            if not route.path.startswith(SPEAKS_OTHERWISE):
                check(response, route.path)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", "input_image"])
def test_what_no_model_reads_is_refused_by_name(call, kind, check_error):
    part = {"type": kind, kind: {"url": "http://169.254.169.254/", "data": "", "format": "wav"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "See:"}, part]}]
    response = call("POST", "/v1/chat/completions", json={"messages": messages})
    body = response.json()["error"]
    assert response.status_code == 400
    assert body["param"].startswith("messages[0].content")
    assert kind in body["message"]
    check(response)
