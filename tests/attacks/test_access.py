"""Every route against everyone who may not ask: nothing is answered that a key was not made for.

Routes are those of the application and of its OpenAPI document, so a new one is attacked from the
day it is there. What a path needs is said here again, apart from the rules that it is held against.
"""

import asyncio
import importlib.util
import logging
import re
import sys
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from zse.serve.access.keyring import Keyring
from zse.serve.access.keys import make_key
from zse.serve.access.policy import Access
from zse.serve.app import HOT_ROUTES, create_app
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.serve.ui.routes import page_routes

SCRIPTED = Path(__file__).parents[1] / "serve" / "scripted_server.py"
PROBES = {"/health", "/health/live", "/health/ready", "/ping"}
DOOR = {"/login", "/ui/assets/{name:path}"}
"""What everybody is shown: the login, and what pages are made of."""
COUNTING = re.compile(r"/metrics|/load|/api/stats.*|/ws/stats")
INFERENCE = re.compile(
    r"/|/v1/(?!(?:un)?load_lora_adapter).+|/v2/rerank|/rerank|/invocations|/tokenize|/detokenize|/tokenizer_info"
    r"|/docs|/openapi\.json|/version|/ws/chat|/chat|/logout|/api/chat/.+|/api/tools.*|/api/rag/.+|/documents|/ui/documents.*|/is_sleeping|/mcp"
    r"|/api/(?:chat|generate|embed|embeddings|tags|ps|show|version)"
)
OLLAMAS = re.compile(r"/api/(?:chat|generate|embed|embeddings|tags|ps|show|version)")
"""Routes whose errors are one sentence."""
KEYS = {
    "admin": {"scope": "admin"},
    "inference": {},
    "metrics": {"scope": "metrics"},
    "disabled": {"scope": "admin", "enabled": False},
    "expired": {"scope": "admin", "expires": 1},
}
MADE = {name: make_key(name, **facts) for name, facts in KEYS.items()}
SECRETS = {name: new.secret for name, new in MADE.items()} | {
    "wrong": "zse-" + "w" * 43,
    "injected": "' OR '1'='1' --",
    "digest": MADE["admin"].key.sha256,
    "id": MADE["admin"].key.key_id,
    "name": "admin",
    "cut": MADE["admin"].secret[:-1],
}
INTRUDERS = ["disabled", "expired", "wrong", "injected", "digest", "id", "name", "cut"]


def _scripted():
    spec = importlib.util.spec_from_file_location("scripted_of_attacks", SCRIPTED)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def state():
    keyring = Keyring(fixed=[new.key for new in MADE.values()])
    state = AppState(ledger=Ledger(), access=Access(keyring, is_local=False))
    state.models.put(_scripted().scripted_model())
    state.phase = "ready"
    return state


@pytest.fixture(scope="module")
def call(state, runner):
    app = create_app(state)

    def ask(method, path, key=None, headers=None, **options) -> httpx.Response:
        shown = {"authorization": f"Bearer {SECRETS[key]}"} if key else {}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
                both = {**shown, **(headers or {})}
                return await client.request(method, path, headers=both, **options)

        return runner.run(ask())

    return ask


@pytest.fixture(scope="module")
def routes(call):
    """Every (method, path), of the router and of the document, with something in each gap."""
    described = call("GET", "/openapi.json", "inference").json()["paths"]
    found = {(one.method, one.described_path) for one in HOT_ROUTES}
    found |= {(method.upper(), path) for path, ways in described.items() for method in ways}
    found |= {("GET", path) for path in ("/docs", "/openapi.json", "/ws/chat", "/ws/stats")}
    pages = [route for route in page_routes() if route.path not in DOOR]
    found |= {(method, one.path) for one in pages for method in one.methods if method != "HEAD"}
    return sorted((method, re.sub(r"\{[^}]+\}", "x", path)) for method, path in found)


def needed(path: str) -> str:
    if COUNTING.fullmatch(path):
        return "metrics"
    return "inference" if INFERENCE.fullmatch(path) else "admin"


def check_refusal(response: httpx.Response, status: int, code: str) -> None:
    """The body is that of the route's protocol, and holds no key."""
    where = f"{response.request.method} {response.request.url.path}"
    assert response.status_code == status, where
    assert not [
        secret for secret in SECRETS.values() if len(secret) > 10 and secret in response.text
    ]
    body = response.json()
    if response.request.url.path.startswith("/v1/messages"):
        assert body["type"] == "error", where
        kind = {401: "authentication_error", 403: "permission_error"}[status]
        assert body["error"]["type"] == kind, where
        return
    assert set(body) == {"error"}, where
    if OLLAMAS.fullmatch(response.request.url.path):
        assert isinstance(body["error"], str), where
        return
    assert set(body["error"]) == {"message", "type", "param", "code"}, where
    assert body["error"]["code"] == code, where
    if status == 401:
        assert response.headers["www-authenticate"].startswith("Bearer"), where


def test_the_walk_finds_the_routes(routes, call):
    paths = {path for _, path in routes}
    assert {"/v1/chat/completions", "/metrics", "/api/keys", "/api/audit/clear", "/"} <= paths
    assert len(routes) > 30


def test_the_router_has_no_route_that_is_not_walked(state, routes):
    app = create_app(state)
    while not hasattr(app, "routes"):
        app = app.app
    served = {route.path for route in app.routes if isinstance(route, Route)}
    walked = {path for _, path in routes} | {"/api/{rest:path}", "/ui/{rest:path}", *DOOR}
    gaps = {re.sub(r"\{[^}]+\}", "x", path) for path in served - walked}
    assert gaps <= walked


def test_without_a_key_nothing_but_probes_is_answered(routes, call):
    for method, path in routes:
        response = call(method, path)
        if path in PROBES:
            assert response.status_code == 200, path
        else:
            check_refusal(response, 401, "invalid_api_key")


@pytest.mark.parametrize("key", INTRUDERS)
def test_what_is_no_key_opens_no_route(routes, call, key):
    for method, path in routes:
        if path not in PROBES:
            check_refusal(call(method, path, key), 401, "invalid_api_key")


@pytest.mark.parametrize("key", ["inference", "metrics"])
def test_a_key_opens_no_route_of_another_scope(routes, call, state, key):
    secret = SECRETS[key].encode()
    refused = 0
    for method, path in routes:
        if path in PROBES:
            continue
        if needed(path) == key:
            assert state.access.decide(path, [secret]).refusal is None, path
        else:
            check_refusal(call(method, path, key), 403, "insufficient_permissions")
            refused += 1
    assert refused > 10


def test_an_admin_is_refused_nowhere(routes, state):
    secret = SECRETS["admin"].encode()
    assert [path for _, path in routes if state.access.decide(path, [secret]).refusal] == []


def test_paths_that_are_spelled_otherwise_open_nothing(routes, call):
    for method, path in routes:
        if path in PROBES or path == "/":
            continue
        for other in (f"/{path}", f"{path}/", path.upper(), f"/health/..{path}", f"/ping;{path}"):
            assert call(method, other).status_code == 401, other


@pytest.mark.parametrize("name", ["x-forwarded-for", "x-real-ip", "forwarded", "x-original-url"])
def test_no_header_of_a_client_makes_it_local(call, name):
    for value in ("127.0.0.1", "/health", "for=127.0.0.1;host=localhost"):
        assert call("GET", "/v1/models", headers={name: value}).status_code == 401


def test_a_key_in_the_address_is_none(call):
    for name in ("api_key", "token", "key", "access_token"):
        response = call("GET", f"/v1/models?{name}={SECRETS['admin']}")
        check_refusal(response, 401, "invalid_api_key")


def chat(call, key, text="say:abc", **fields):
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return call("POST", "/v1/chat/completions", key, json=body)


def test_what_belongs_to_one_key_is_not_there_for_another(call):
    made = call("POST", "/v1/responses", "inference", json={"input": "say:secret-canary"}).json()
    own = f"/v1/responses/{made['id']}"
    assert call("GET", own, "inference").status_code == 200
    for method, path in (("GET", own), ("GET", f"{own}/input_items"), ("DELETE", own)):
        response = call(method, path, "admin")  # a tenant like any other
        assert response.status_code == 404, path
        assert "canary" not in response.text
    follow = {"input": "say:x", "previous_response_id": made["id"]}
    assert call("POST", "/v1/responses", "admin", json=follow).status_code == 404
    assert call("GET", own, "inference").status_code == 200


def test_two_keys_reach_the_engine_with_salts_of_their_own(call, state):
    state.model.engine.seen.clear()
    for key in ("inference", "admin"):
        chat(call, key, cache_salt="same")
        chat(call, key)
    salts = [seen[2] for seen in state.model.engine.seen]
    assert len(set(salts)) == 4
    for key, (with_salt, without) in zip(
        ("inference", "admin"), (salts[:2], salts[2:]), strict=True
    ):
        identity = MADE[key].key.key_id
        assert with_salt.startswith(identity)
        assert without.startswith(identity)


def test_no_key_is_in_a_log_or_an_entry(routes, call, state, caplog):
    with caplog.at_level(logging.DEBUG):
        for key in SECRETS:
            call("GET", "/v1/models", key)
            call("GET", f"/v1/models/{SECRETS[key][:12]}", key)
            chat(call, key, text="say:hidden-canary")
    told = caplog.text + repr([vars(record) for record in caplog.records])
    told += "".join(repr(entry) for entry in state.audit.recent())
    for new in MADE.values():
        assert new.secret not in told
        assert new.key.sha256 not in told
    assert "hidden-canary" not in told
