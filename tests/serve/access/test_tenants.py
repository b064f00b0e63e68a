"""What one caller's requests left behind does not exist for another, on any route."""

import pytest

HELLO = {"model": "default", "input": "say:Hello"}


@pytest.fixture
def as_caller(guarded, add_key):
    """Calls with the keys of two callers."""
    keys = {name: add_key(name) for name in ("alice", "bob")}
    call = guarded()

    def ask(who, method, path, headers=None, **options):
        headers = {"authorization": f"Bearer {keys[who]}", **(headers or {})}
        return call(method, path, headers=headers, **options)

    return ask


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ],
)
def test_a_response_of_another_is_not_found(as_caller, method, path):
    body = as_caller("alice", "POST", "/v1/responses", json=HELLO).json()
    own = as_caller("alice", "GET", f"/v1/responses/{body['id']}")
    assert own.status_code == 200
    foreign = as_caller("bob", method, f"/v1/responses/{body['id']}{path}")
    unknown = as_caller("bob", method, f"/v1/responses/resp_unknown{path}")
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace(body["id"], "resp_unknown") == unknown.text
    assert as_caller("alice", "GET", f"/v1/responses/{body['id']}").status_code == 200


def test_nobody_goes_on_with_a_response_of_another_or_refers_to_its_items(as_caller):
    body = as_caller("alice", "POST", "/v1/responses", json=HELLO).json()
    follow = {**HELLO, "previous_response_id": body["id"]}
    assert as_caller("bob", "POST", "/v1/responses", json=follow).status_code == 404
    reference = {"type": "item_reference", "id": body["output"][0]["id"]}
    refer = {**HELLO, "input": [reference, {"role": "user", "content": "x"}]}
    assert as_caller("bob", "POST", "/v1/responses", json=refer).status_code == 404
    assert as_caller("bob", "POST", "/v1/responses/input_tokens", json=refer).status_code == 404
    assert as_caller("alice", "POST", "/v1/responses", json=follow).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_stream_of_another_is_not_found(as_caller, method):
    messages = [{"role": "user", "content": "say:Hello"}]
    response = as_caller(
        "alice",
        "POST",
        "/v1/chat/completions",
        json={"messages": messages, "stream": True},
        headers={"x-zse-resumable": "1"},
    )
    path = f"/v1/streams/{response.headers['x-zse-stream-id']}"
    assert as_caller("bob", method, path).status_code == 404
    assert as_caller("alice", "GET", path).text == response.text


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"])
def test_without_a_key_nothing_is_answered_in_the_words_of_the_route(guarded, add_key, path):
    add_key()
    response = guarded()("POST", path, json={})
    assert response.status_code == 401
    is_anthropics = path.startswith("/v1/messages")
    kind = "authentication_error" if is_anthropics else "invalid_request_error"
    assert response.json()["error"]["type"] == kind
    assert ("request_id" in response.json()) == is_anthropics
