"""The gate around every route."""

import base64

import pytest

from zse.serve.access.gate import Gate
from zse.serve.access.keys import key_from_secret
from zse.serve.access.policy import InvalidKeyError
from zse.serve.http.errors import error_response

MODELS = "/v1/models"
TOLD = {"websocket.http.response": {}}
"""What a server says that can answer a WebSocket's client in words."""


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def test_without_a_key_the_answer_is_openais_401(guarded, check_error):
    response = guarded()("GET", MODELS)
    message = check_error(response, 401, code="invalid_api_key")
    assert "No API key was provided" in message
    assert response.headers["www-authenticate"] == 'Bearer realm="zse"'


def test_a_wrong_key_is_not_repeated(guarded, add_key, check_error):
    add_key()
    wrong = "zse-" + "w" * 43
    response = guarded()("GET", MODELS, headers=bearer(wrong))
    assert "w" * 8 not in check_error(response, 401, code="invalid_api_key")


def test_a_key_of_another_scope_gets_403(guarded, add_key, check_error):
    secret = add_key(scope="metrics")
    response = guarded()("GET", MODELS, headers=bearer(secret))
    check_error(response, 403, code="insufficient_permissions")
    assert "www-authenticate" not in response.headers


def test_anthropics_clients_are_told_in_their_words(guarded):
    body = guarded()("POST", "/v1/messages", json={}).json()
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


@pytest.mark.parametrize(
    "headers",
    [
        lambda key: {"authorization": f"Bearer {key}"},
        lambda key: {"authorization": f"bearer   {key}"},
        lambda key: {"x-api-key": key},
        lambda key: {"authorization": "Bearer token-of-a-gateway", "x-api-key": key},
        lambda key: {"authorization": "Basic dXNlcjpwYXNz", "x-api-key": key},
    ],
)
def test_a_key_comes_in_either_header(guarded, add_key, headers):
    secret = add_key()
    assert guarded()("GET", MODELS, headers=headers(secret)).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic KEY",
        "KEY",
        "Bearer KEYx",
        "Bearer KE",
        "Bearer KEY KEY",
        "Bearer ' OR '1'='1",
        "Bearer ' OR '1'='1' --",
        "Bearer *",
        "Bearer null",
        "Bearer \xff\xfe",
        "Bearer " + "a" * 60_000,
    ],
)
def test_nothing_but_the_key_itself_lets_in(guarded, add_key, check_error, value):
    value = value.replace("KEY", add_key())
    headers = {b"authorization": value.encode("latin-1")}
    check_error(guarded()("GET", MODELS, headers=headers), 401, code="invalid_api_key")


def test_the_host_header_chooses_no_path(guarded, add_key):
    add_key()
    for host in ("localhost/health", "localhost?x=/ping", "localhost#", "/health/live:80"):
        assert guarded()("GET", MODELS, headers={"host": host}).status_code == 401


def test_a_path_is_the_routers_own(guarded, add_key):
    add_key()
    call = guarded()
    for path in ("/health/../v1/models", "/health/live/../../v1/models", "/%2e/v1/models"):
        assert call("GET", path).status_code == 401
    assert call("GET", "/v1/models?path=/health").status_code == 401


def test_a_key_made_by_another_process_opens_a_running_server(guarded, add_key, clock):
    call = guarded()
    secret = add_key()
    assert call("GET", MODELS, headers=bearer(secret)).status_code == 401
    clock.seconds += 1
    assert call("GET", MODELS, headers=bearer(secret)).status_code == 200


def test_a_request_reaches_the_engine_as_its_callers(guarded, add_key, state):
    secret = add_key(priority=5)
    call = guarded()
    body = {"messages": [{"role": "user", "content": "say:a"}], "cache_salt": "s", "priority": 90}
    asked = []
    generate = state.model.engine.generate
    state.model.engine.generate = lambda request, **how: (
        asked.append(request) or generate(request, **how)
    )
    call("POST", "/v1/chat/completions", headers=bearer(secret), json=body)
    (key,) = state.access.keyring.known
    assert (asked[0].priority, asked[0].tenant) == (5, key.key_id)
    _, _, salt = state.model.engine.seen[0]
    assert salt == f"{key.key_id}:s"


class Socket:
    """Offers protocols to a gate, and keeps what it answers."""

    def __init__(self, access, runner, *, protocols=(), headers=(), extensions=None) -> None:
        self.sent = []
        self.scope = {
            "type": "websocket",
            "path": "/ws/chat",
            "headers": list(headers),
            "subprotocols": list(protocols),
            "extensions": extensions or {},
        }
        self.is_in = False
        runner.run(
            Gate(self._app, access=access, refuse=error_response)(self.scope, None, self._send)
        )

    async def _app(self, scope, receive, send):
        self.is_in = True
        await send({"type": "websocket.accept"})

    async def _send(self, message):
        self.sent.append(message)


def test_what_takes_long_can_ask_whether_its_key_still_lets_in(
    access, runner, add_key, key_file, clock
):
    secret = add_key("leaked").encode()
    socket = Socket(access(), runner, headers=[(b"authorization", b"Bearer " + secret)])
    may_go_on = socket.scope["state"]["may_go_on"]
    may_go_on()
    key_file.update("leaked", lambda _: None)
    clock.seconds += 60
    with pytest.raises(InvalidKeyError, match="lets in no longer"):
        may_go_on()


@pytest.mark.parametrize("prefix", ["zse-api-key.", "openai-insecure-api-key."])
def test_a_websocket_shows_its_key_as_a_protocol_that_is_never_repeated(
    access, runner, add_key, prefix
):
    secret = add_key()
    socket = Socket(access(), runner, protocols=["zse", prefix + secret])
    assert socket.is_in
    assert socket.scope["subprotocols"] == ["zse"]
    assert socket.sent == [{"type": "websocket.accept", "subprotocol": "zse"}]


@pytest.mark.parametrize(
    ("facts", "status"),
    [({"enabled": False}, 401), ({"expires": 1}, 401), ({"scope": "metrics"}, 403)],
)
def test_a_key_that_lets_nobody_in_opens_no_websocket_as_a_protocol(
    access, runner, add_key, facts, status
):
    offered = ["zse", "zse-api-key." + add_key(**facts)]
    socket = Socket(access(), runner, protocols=offered, extensions=TOLD)
    assert (socket.is_in, socket.sent[0]["status"]) == (False, status)


def test_a_key_with_characters_that_no_protocol_has_is_shown_encoded(access, runner, key_file):
    key = key_from_secret('k/+=()<>@,;:\\[]?{}"', "mounted", "inference")
    key_file.add(key)
    encoded = base64.urlsafe_b64encode(b'k/+=()<>@,;:\\[]?{}"').decode().rstrip("=")
    socket = Socket(access(), runner, protocols=["zse", "zse-api-key-base64url." + encoded])
    assert socket.is_in
    assert socket.scope["subprotocols"] == ["zse"]


@pytest.mark.parametrize("name", ["", "a", "!!!", "_" * 9, "zse-" + "w" * 4096, "ä"])
@pytest.mark.parametrize("prefix", ["zse-api-key.", "zse-api-key-base64url."])
def test_what_is_no_key_opens_no_websocket_and_is_offered_to_nobody(
    access, runner, add_key, prefix, name
):
    add_key()
    socket = Socket(access(), runner, protocols=[prefix + name], extensions=TOLD)
    assert (socket.is_in, socket.sent[0]["status"]) == (False, 401)
    assert socket.scope["subprotocols"] == []


def test_a_websocket_shows_its_key_in_a_header(access, runner, add_key):
    headers = [(b"authorization", b"Bearer " + add_key().encode())]
    socket = Socket(access(), runner, headers=headers)
    assert socket.sent == [{"type": "websocket.accept"}]


def test_a_websocket_without_a_key_is_closed_before_it_is_open(access, runner):
    assert Socket(access(), runner).sent == [{"type": "websocket.close", "code": 1008}]
    told = Socket(access(), runner, extensions=TOLD)
    assert told.sent[0]["type"] == "websocket.http.response.start"
    assert told.sent[0]["status"] == 401
    assert not told.is_in
