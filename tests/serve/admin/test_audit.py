"""/api/audit and /api/keys."""

import pytest

from zse.serve.access.key_file import KeyFile
from zse.serve.access.keyring import Keyring
from zse.serve.access.policy import Access
from zse.serve.audit.files import AuditFiles
from zse.serve.audit.log import AuditLog

CHAT = "/v1/chat/completions"


@pytest.fixture
def kept(state, call, tmp_path):
    """A server that keeps files."""
    state.audit.files = AuditFiles(tmp_path / "audit")
    yield call
    state.audit.close()


def test_requests_are_summed_listed_and_looked_for(kept):
    kept("POST", CHAT, json={"messages": [{"role": "user", "content": "say:a"}]})
    kept("GET", "/nowhere")
    sums = kept("GET", "/api/audit/summary").json()
    assert (sums["total_requests"], sums["errors"], sums["hours"]) == (2, 1, 24.0)
    assert sums["by_model"] == {"scripted": 1}
    recent = kept("GET", "/api/audit/recent?limit=2").json()["entries"]
    assert [line["path"] for line in recent] == ["/api/audit/summary", "/nowhere"]
    found = kept("GET", "/api/audit/query?path=/v1/&status=200").json()
    assert found["total"] == 1
    assert found["entries"][0]["total_tokens"] > 0
    assert kept("GET", "/api/audit/query?since=2999-01-01T00:00:00").json()["total"] == 0


@pytest.mark.parametrize("query", ["status=x", "limit=0", "since=soon", "limit=99999999"])
def test_what_cannot_be_looked_for_is_a_400(kept, check_error, query):
    response = kept("GET", f"/api/audit/query?{query}")
    check_error(response, 400, param=query.partition("=")[0])


def test_the_log_says_how_large_it_is_and_is_cleared(kept, tmp_path):
    kept("GET", "/nowhere")
    stats = kept("GET", "/api/audit/stats").json()
    assert stats["folder"] == str(tmp_path / "audit")
    assert (stats["added"], stats["lost"], stats["packed_files"]) == (1, 0, 0)
    assert kept("DELETE", "/api/audit/clear?all=true").json() == {"cleared": True, "all": True}
    assert kept("GET", "/api/audit/recent").json()["entries"][-1]["path"] == "/api/audit/clear"


def test_a_server_without_files_tells_what_it_remembers(call, state):
    assert isinstance(state.audit, AuditLog)
    call("GET", "/nowhere")
    assert call("GET", "/api/audit/summary").json()["total_requests"] == 1
    assert call("GET", "/api/audit/stats").json()["folder"] is None


@pytest.fixture
def keys(state, make_caller, tmp_path):
    """A server on loopback with a file of keys, called with an admin's key once there is one."""
    ring = Keyring(key_file=KeyFile(tmp_path / "api_keys.json"))
    state.access = Access(ring, is_local=True)
    call = make_caller()
    made = call("POST", "/api/keys", json={"name": "root", "scope": "admin"})
    assert made.status_code == 201
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    return lambda method, path, **options: call(method, path, headers=headers, **options)


def test_a_key_is_made_shown_once_listed_switched_and_removed(keys):
    made = keys("POST", "/api/keys", json={"name": "app", "rate_limit": 5}).json()
    assert made["key"].startswith("zse-")
    listed = keys("GET", "/api/keys")
    assert [key["name"] for key in listed.json()["keys"]] == ["root", "app"]
    assert made["key"] not in listed.text
    assert "sha256" not in listed.text
    assert keys("PATCH", "/api/keys/app", json={"enabled": False}).json()["state"] == "disabled"
    shown = keys("GET", "/api/keys/app").json()
    assert shown["use"]["requests"]["remaining"] == 5
    assert keys("POST", "/api/keys/app/reset").status_code == 200
    assert keys("DELETE", "/api/keys/app").status_code == 204
    assert keys("GET", "/api/keys/app").status_code == 404
    assert keys("DELETE", "/api/keys/app").status_code == 404


def test_asking_itself_is_switched(keys):
    assert keys("GET", "/api/auth").json() == {"enabled": True, "asks_for_key": True}
    assert keys("POST", "/api/auth/disable").json() == {"enabled": False, "asks_for_key": False}
    assert keys("POST", "/api/auth/enable").json()["asks_for_key"] is True


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"name": "a b"},
        {"name": "root"},
        {"name": "app", "scope": "root"},
        {"name": "app", "rate_limit": -1},
        {"name": "app", "unknown": 1},
        {"name": "app", "key": "of-my-own"},
    ],
)
def test_a_key_that_cannot_be_is_a_400(keys, asked):
    assert keys("POST", "/api/keys", json=asked).status_code == 400


def test_a_server_without_a_file_of_keys_says_so(call):
    assert call("POST", "/api/keys", json={"name": "app"}).status_code == 400
