"""The pages of models and of requests, and the documentation."""

import html
import re

import pytest

from zse.serve.audit.entry import AuditEntry
from zse.serve.ui import audit

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def send(call):
    """Send a form of a page of ours."""
    csrf = re.search(r'name="csrf" content="([^"]*)"', call("GET", "/models").text).group(1)
    headers = {"x-csrf-token": csrf, "sec-fetch-site": "same-origin"}
    return lambda path, **form: call("POST", path, data=form, headers=headers)


def test_a_model_is_unloaded_by_a_button(send, state):
    page = send("/ui/models/unload", model="scripted")
    assert page.status_code == 200
    assert "None: load one below." in page.text
    assert state.model is None


def test_what_cannot_be_done_is_said_on_the_page(send):
    for path, form, words in (
        ("/ui/models/unload", {"model": EVIL}, "is loaded"),
        ("/ui/models/load", {"model": "../../etc/passwd"}, "in no place"),
        ("/ui/models/load", {"model": "x", "quantization": "int1"}, "quantization"),
        ("/ui/models/load", {"model": "x", "max_context": "many"}, "whole number"),
        ("/ui/models/load", {}, "model"),
    ):
        page = send(path, **form)
        assert page.status_code == 200
        alert = re.search(r'role="alert">([^<]*)<', page.text).group(1)
        assert words in html.unescape(alert)
        assert "<script>" not in page.text


def test_the_server_is_sent_to_sleep_and_says_so(send, call, state):
    assert "Asleep (level 1)" in send("/ui/models/sleep?level=1").text
    assert state.fleet.sleep.level == 1
    assert "Wake up" in call("GET", "/models").text
    assert "expected 1" in html.unescape(send("/ui/models/sleep?level=9").text)


def test_models_stay_as_they_are_without_the_token_of_a_page(call, state):
    for what in ("load", "unload", "sleep", "wake"):
        answer = call("POST", f"/ui/models/{what}", data={"model": "scripted"})
        assert answer.status_code == 403, what
    assert state.model is not None


def test_whatever_a_client_writes_into_an_audit_line_is_text(call, state):
    entry = AuditEntry(
        request_id=EVIL,
        timestamp="2999-01-01T00:00:00.000Z",
        method=EVIL,
        path=EVIL,
        status_code=200,
        latency_ms=1.0,
        api_key_name=EVIL,
        client_ip=EVIL,
        user_agent=EVIL,
        model_id=EVIL,
        total_tokens=1,
    )
    state.audit.add(entry)
    page = call("GET", "/requests").text
    assert html.escape(EVIL, quote=False).replace("/", "&#x2f;") in page
    assert "<script>alert" not in page
    assert "<img" not in page


def test_requests_are_looked_for(call, monkeypatch):
    asked = []

    def newest(log, wanted, limit):
        asked.append(wanted)
        return []

    monkeypatch.setattr(audit, "newest", newest)
    call("GET", "/ui/requests?hours=1&key=alice&path=/v1/&status=5xx")
    call("GET", "/ui/requests?hours=nan&key=" + "x" * 300)
    assert (asked[0].key, asked[0].path, asked[0].status) == ("alice", "/v1/", "5xx")
    assert asked[0].since > asked[1].since
    assert len(asked[1].key) == 200


def test_looks_at_pages_are_left_out_of_the_requests_unless_they_are_wanted(call):
    call("GET", "/dashboard")
    call("GET", "/v1/models")
    call("GET", "/ui/requests?status=200")
    few, all_ = call("GET", "/ui/requests").text, call("GET", "/ui/requests?pages=1").text
    for text, num_looks in ((few, 0), (all_, 1)):
        assert html.unescape(text).count(" GET /dashboard".strip()) == num_looks
        assert "GET /v1/models" in html.unescape(text)


def test_the_documentation_names_this_server_and_every_route(call):
    text = html.unescape(call("GET", "/docs").text)
    assert "http://localhost/v1/chat/completions" in text
    for path in call("GET", "/openapi.json").json()["paths"]:
        assert path in text
    for language in ("curl", "Python", "Node", "Command line"):
        assert f"<h3>{language}</h3>" in text
