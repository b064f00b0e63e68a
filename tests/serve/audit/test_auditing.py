"""Every request leaves one entry."""

import asyncio
import json

import httpx
import pytest

from zse.serve.access.keyring import Keyring
from zse.serve.access.keys import make_key
from zse.serve.access.policy import Access
from zse.serve.state import Presence
from zse.server_options import AuditOptions, ServeOptions

CHAT = "/v1/chat/completions"


@pytest.fixture
def entries(state):
    return lambda: list(reversed(state.audit.recent()))


def counted(state, name):
    text = state.metrics.render().decode()
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}_total")
    )


def test_an_answer_leaves_who_asked_what_and_what_it_cost(call, entries):
    headers = {"user-agent": "tests/1", "x-request-id": "mine-1"}
    usage = call("POST", CHAT, headers=headers, json=body("say:abc")).json()["usage"]
    (entry,) = entries()
    assert (entry.request_id, entry.method, entry.path) == ("mine-1", "POST", CHAT)
    assert (entry.status_code, entry.model_id) == (200, "scripted")
    assert (entry.user_agent, entry.client_ip) == ("tests/1", "127.0.0.1")
    assert entry.api_key_name is None
    assert entry.total_tokens == usage["total_tokens"]
    assert entry.latency_ms > 0
    assert entry.timestamp.endswith("Z")


def body(text="say:abc", **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", CHAT, {"messages": []}, 400),
        ("GET", "/nowhere", None, 404),
        ("GET", CHAT, None, 405),
        ("POST", CHAT, body("break:0"), 500),
        ("POST", CHAT, body(model="other"), 404),
        ("POST", CHAT, body("say:a", stream=True), 200),
    ],
)
def test_requests_that_fail_leave_one_entry_too(call, entries, method, path, content, status):
    assert call(method, path, json=content).status_code == status
    assert [entry.status_code for entry in entries()] == [status]


def test_probes_leave_no_entry(call, state, entries):
    for path in ("/health/live", "/health/ready", "/ping", "/metrics"):
        assert call("GET", path).status_code == 200
    assert entries() == []
    state.presence = Presence.CLOSED
    call("GET", "/health/ready")
    assert entries() == []


def test_metrics_leave_an_entry_where_they_are_refused(guarded_call, entries):
    guarded_call("GET", "/metrics")
    assert [(entry.path, entry.status_code) for entry in entries()] == [("/metrics", 401)]


@pytest.fixture
def guarded_call(state, make_caller):
    state.access = Access(Keyring(), is_local=False)
    return make_caller()


def test_the_sums_of_the_entries_are_those_of_the_metrics(call, state, entries, runner):
    call("POST", CHAT, json=body("say:abc", n=2))
    call("POST", CHAT, json=body("break:3"))
    call("POST", CHAT, json=body("say:abc", stream=True))
    call("POST", "/v1/completions", json={"prompt": ["a", "say:bc"], "max_tokens": 3})

    async def leave():
        transport = httpx.ASGITransport(call.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asking = asyncio.create_task(client.post(CHAT, json=body("slow:200", stream=True)))
            while not state.in_flight:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            while state.in_flight:
                await asyncio.sleep(0.01)

    runner.run(leave())
    assert len(entries()) == 5
    total = sum(entry.total_tokens for entry in entries())
    assert total == counted(state, "zse_prompt_tokens") + counted(state, "zse_generation_tokens")
    assert entries()[-1].total_tokens > len("user: slow:200")


def test_a_prompt_is_in_no_entry_unless_that_was_asked_for(call, entries):
    call("POST", CHAT, json=body("say:canary-prompt"))
    assert "canary" not in repr(entries())


def test_bodies_are_kept_where_that_was_asked_for(make_caller, state):
    state.options = ServeOptions(audit=AuditOptions(audit_content=True))
    call = make_caller()
    call("POST", CHAT, json=body("say:" + "a" * 100_000))
    call("POST", CHAT, json=body("say:canary"))
    long, short = reversed(state.audit.recent())
    assert json.loads(short.body) == body("say:canary")
    assert len(long.body) == 64 << 10


def test_no_entry_is_made_where_none_is_wanted(make_caller, state):
    state.options = ServeOptions(audit=AuditOptions(audit=False))
    make_caller()("POST", CHAT, json=body())
    assert state.audit.num_added == 0


def test_a_key_is_called_by_its_name_also_when_it_is_refused(call, state, entries):
    new = make_key("my-app")
    state.access.keyring.add(new.key)
    headers = {"authorization": f"Bearer {new.secret}"}
    call("POST", CHAT, headers=headers, json=body())
    call("GET", "/api/keys", headers=headers)
    call("GET", "/v1/models", headers={"authorization": "Bearer " + "w" * 43})
    found = [(entry.api_key_name, entry.status_code) for entry in entries()]
    assert found == [("my-app", 200), ("my-app", 403), (None, 401)]
    assert new.secret not in repr(entries())
    assert "w" * 43 not in repr(entries())
