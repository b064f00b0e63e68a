"""POST /mcp: one message at a time, no session, nothing that the key may not do elsewhere."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from zse.serve.access.keyring import Keyring, parse_secrets
from zse.serve.access.policy import Access
from zse.serve.documents.libraries import Libraries
from zse.serve.mcp_server.endpoint import VERSIONS

MCP = "/mcp"


@pytest.fixture
def enabled(state, tmp_path):
    tools = replace(state.options.server_tools, mcp_endpoint=True)
    state.options = replace(state.options, server_tools=tools)
    state.settings = replace(state.settings, home=tmp_path)
    yield state
    state.one_of(Libraries).close()


@pytest.fixture
def rpc(enabled, call):
    """Send a message; returns what it is answered with."""

    def send(method, params=None, *, identifier=1, **options):
        message = {"jsonrpc": "2.0", "id": identifier, "method": method, "params": params or {}}
        return call("POST", MCP, json=message, **options)

    return send


def told(response):
    assert response.status_code == 200, response.text
    assert response.json()["jsonrpc"] == "2.0"
    return response.json()["result"]


def run(rpc, name, arguments=None):
    result = told(rpc("tools/call", {"name": name, "arguments": arguments or {}}))
    (part,) = result["content"]
    return part["text"], result["isError"]


def test_without_its_flag_there_is_no_such_route(call, check_error):
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    check_error(call("POST", MCP, json=message), 404)
    check_error(call("GET", MCP), 404)


def test_a_client_is_greeted_in_a_version_that_both_speak(rpc):
    for asked in (*VERSIONS, "1999-01-01", None, 7):
        result = told(rpc("initialize", {"protocolVersion": asked, "capabilities": {}}))
        assert result["protocolVersion"] == (asked if asked in VERSIONS else VERSIONS[0])
        assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert told(rpc("ping")) == {}


def test_tools_are_told_with_closed_schemas(rpc):
    tools = {one["name"]: one for one in told(rpc("tools/list"))["tools"]}
    assert sorted(tools) == ["ask", "list_models", "search_documents", "server_status"]
    schema = tools["ask"]["inputSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["prompt"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["prompt"]["description"] == "What is asked."


def test_tools_answer_by_the_server_s_own_routes(rpc, call):
    assert run(rpc, "ask", {"prompt": "say:Paris."}) == ("Paris.", False)
    text, _ = run(rpc, "list_models")
    assert json.loads(text) == ["scripted"]
    text, _ = run(rpc, "server_status")
    assert json.loads(text)["status"]
    call("POST", "/api/rag/documents", json={"name": "zoo", "content": "Zebras live in Africa."})
    text, _ = run(rpc, "search_documents", {"query": "zebras", "most": 1})
    assert json.loads(text)[0]["text"] == "Zebras live in Africa."
    text, _ = run(rpc, "ask", {"prompt": "say:Africa [1], zebras", "documents": True})
    assert text.endswith("\n[1] zoo")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("ask", {}, "missing required field `prompt`"),
        ("ask", {"prompt": ""}, "length >= 1"),
        ("ask", {"prompt": "x", "url": "http://x"}, "unknown field `url`"),
        ("ask", {"prompt": "x", "model": "nobody"}, "nobody"),
        ("ask", {"prompt": "x", "max_tokens": 0}, ">= 1"),
        ("ask", ["x"], "object"),
    ],
)
def test_what_a_tool_cannot_do_is_told_as_its_result(rpc, name, arguments, words):
    text, is_error = run(rpc, name, arguments)
    assert is_error
    assert words in text


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ({"id": 1, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, 200, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, 200, -32602),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": ["ask"]}},
            200,
            -32602,
        ),
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], 400, -32700),
        (5, 400, -32700),
    ],
)
def test_what_is_no_message_gets_an_error_of_its_protocol(enabled, call, message, status, code):
    response = call("POST", MCP, json=message)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_bytes_that_are_no_json_get_one_too(enabled, call):
    headers = {"content-type": "application/json"}
    response = call("POST", MCP, content=b"{", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32700)


def test_notifications_and_answers_are_taken_in_silence(enabled, call):
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 3, "result": {}},
    ):
        response = call("POST", MCP, json=message)
        assert (response.status_code, response.content) == (202, b"")


def test_there_is_no_stream_to_hang_on(enabled, call):
    response = call("GET", MCP)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert call("DELETE", MCP).status_code == 405


def test_another_version_of_the_protocol_is_refused(rpc):
    response = rpc("ping", headers={"mcp-protocol-version": "2031-01-01"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)
    assert rpc("ping", headers={"mcp-protocol-version": VERSIONS[-1]}).status_code == 200


def test_pages_of_other_origins_are_refused_unless_they_are_named(rpc, state, check_error):
    foreign = {"origin": "https://evil.example"}
    check_error(rpc("ping", headers=foreign), 403, code="cross_origin_request")
    cross = {"sec-fetch-site": "cross-site", "origin": "null"}
    check_error(rpc("ping", headers=cross), 403, code="cross_origin_request")
    state.options = replace(
        state.options, http=replace(state.options.http, cors_origins=("https://evil.example/",))
    )
    assert rpc("ping", headers=foreign).status_code == 200


def test_a_key_opens_what_it_opens_elsewhere(enabled, make_caller, state):
    keys = "app-key-00000000000000000000,admin:boss-key-0000000000000000000"
    state.access = Access(Keyring(fixed=parse_secrets(keys, "test")), is_local=False)
    call = make_caller()
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "server_status"},
    }
    assert call("POST", MCP, json=message).status_code == 401
    results = {}
    for who in ("app-key-00000000000000000000", "boss-key-0000000000000000000"):
        headers = {"authorization": f"Bearer {who}"}
        results[who[:4]] = told(call("POST", MCP, json=message, headers=headers))
    assert results["app-"]["isError"]
    assert "metrics" in results["app-"]["content"][0]["text"]
    assert not results["boss"]["isError"]


def test_the_audit_log_names_each_call_and_its_tokens(rpc, state):
    run(rpc, "ask", {"prompt": "say:Paris."})
    rpc("ping")
    entries = state.audit.recent(2)
    by_tools = {entry.tools: entry for entry in entries if entry.path == MCP}
    entry = by_tools["ask"]
    assert (entry.model_id, entry.status_code) == ("scripted", 200)
    assert entry.total_tokens > 6
    assert len(by_tools) == 2


def test_the_official_client_lists_and_calls(start_command, scripted, tmp_path):
    pytest.importorskip("mcp")
    from mcp import Client

    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path), ZSE_MCP_ENDPOINT="1")
    child.wait_for_line("ready")

    async def talk():
        async with Client(f"{child.url}/mcp") as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            answer = await client.call_tool("ask", {"prompt": "say:Paris."})
            return names, answer

    names, answer = asyncio.run(talk())
    assert names == ["ask", "list_models", "server_status", "search_documents"]
    assert (answer.content[0].text, answer.is_error) == ("Paris.", False)
