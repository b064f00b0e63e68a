"""How many answers run at once, and who may change it."""

import pytest


def test_disabled_is_one_at_a_time_and_enabled_is_as_configured(call, state):
    assert call("GET", "/api/batching").json()["enabled"] is True
    found = call("POST", "/api/batching/disable").json()
    assert found["enabled"] is False
    assert found["models"]["scripted"]["max_running"] == 1
    assert state.model.engine.max_running == 1
    found = call("POST", "/api/batching/enable").json()
    assert found["models"]["scripted"]["max_running"] == state.max_running
    assert found["config"] == {
        "max_batch_size": 64,
        "max_tokens_per_batch": 2048,
        "batch_wait_timeout_ms": 0,
    }


def test_one_model_can_be_meant(call, state, scripted):
    state.models.put(scripted.scripted_model("other"))
    found = call("POST", "/api/batching/disable", json={"model": "other"}).json()
    assert found["enabled"] is False
    assert found["models"]["scripted"]["enabled"] is True
    assert found["models"]["other"]["enabled"] is False


def test_an_unknown_model_or_field_is_refused(call, check_error):
    response = call("POST", "/api/batching/disable", json={"model": "nope"})
    check_error(response, 404, param="model", code="model_not_found")
    response = call("POST", "/api/batching/disable", json={"modell": "x" * 5000})
    check_error(response, 400, param="modell")
    assert len(response.content) < 400
    response = call("POST", "/api/batching/disable", content=b"{", headers=JSON)
    check_error(response, 400)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://localhost:3000"},
        {"origin": "null"},
    ],
)
def test_a_page_of_another_origin_changes_nothing(call, check_error, state, headers):
    response = call("POST", "/api/batching/disable", headers=headers)
    check_error(response, 403, code="cross_origin_request")
    assert state.model.engine.max_running == 64


def test_a_page_of_this_server_may(call, state):
    headers = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert call("POST", "/api/batching/disable", headers=headers).status_code == 200
    assert state.model.engine.max_running == 1


def test_unknown_routes_of_the_api_have_the_same_error_body(call, check_error):
    check_error(call("GET", "/api/nothing"), 404, code="unknown_url")
    check_error(call("PUT", "/api/batching"), 405, code="method_not_supported")


@pytest.mark.parametrize(
    "body",
    [b'{"model": ' + b"[" * 100_000, b'{"model": "' + b"\xff" * 10, b"[]", b"7", b'{"a":' * 5000],
)
def test_a_body_that_cannot_be_read_is_an_error_of_the_same_shape(call, check_error, body):
    response = call("POST", "/api/batching/disable", content=body, headers=JSON)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert len(response.content) < 500


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded"])
def test_json_that_nobody_called_so_is_read_unless_a_page_sent_it(call, state, kind):
    headers = {"content-type": kind} if kind else {}
    body = b'{"model": "scripted"}'
    url = "/api/batching/disable"
    assert call("POST", url, content=body, headers=headers).status_code == 200
    assert state.model.engine.max_running == 1
    page = {**headers, "origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert call("POST", url, content=body, headers=page).status_code == 400
