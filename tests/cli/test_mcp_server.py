"""zse mcp: an MCP client asks it, it asks a server over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mcp import Client

from zse.cli.mcp_server import server_for

ANSWERS = {
    "/v1/models": {"data": [{"id": "tiny"}]},
    "/api/stats": {"models": {}, "queue": 0},
    "/v1/chat/completions": {"choices": [{"message": {"content": "Hello"}}]},
    "/api/rag/search": {"results": [{"text": "found"}]},
}


@pytest.fixture(scope="module")
def zse_server():
    """Answers as a server of zse does, and keeps what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((self.path, self.headers.get("authorization"), body))
            is_refused = self.headers.get("authorization") != "Bearer key"
            told = {"error": {"message": "no such key"}} if is_refused else ANSWERS[self.path]
            text = json.dumps(told).encode()
            self.send_response(401 if is_refused else 200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def call(url, name, arguments=None, *, key="key"):
    async def run():
        server = server_for(f"{url}/v1", api_key=key, model="default", seconds=5)
        async with Client(server) as client:
            return await client.call_tool(name, arguments or {})

    return asyncio.run(run())


def test_a_client_asks_a_model_with_the_key(zse_server):
    url, asked = zse_server
    result = call(url, "ask", {"prompt": "Hi", "system": "Be short", "model_name": "tiny"})
    assert result.content[0].text == "Hello"
    path, key, body = asked[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer key")
    assert body["model"] == "tiny"
    assert [one["role"] for one in body["messages"]] == ["system", "user"]


def test_models_status_and_documents_are_told(zse_server):
    url, asked = zse_server
    assert call(url, "list_models").structured_content == {"result": ["tiny"]}
    assert json.loads(call(url, "server_status").content[0].text)["queue"] == 0
    found = call(url, "search_documents", {"query": "what", "most": 2})
    assert json.loads(found.content[0].text) == [{"text": "found"}]
    assert asked[-1][2] == {"query": "what", "top_k": 2}


def test_refusals_and_absence_are_told_in_words(zse_server):
    refused = call(zse_server[0], "ask", {"prompt": "Hi"}, key="other")
    assert refused.is_error
    assert "401: no such key" in refused.content[0].text
    away = call("http://127.0.0.1:1", "list_models")
    assert away.is_error
    assert "no answer from" in away.content[0].text
