"""Modules that a request brings in, and nothing before it."""

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

from zse.serve.app import HOT_ROUTES
from zse.serve.http.lazy_handlers import Late
from zse.settings import subprocess_environment

ROOT = str(Path(__file__).parents[3])


LATE = [route for route in HOT_ROUTES if isinstance(route.handler, Late)]


def test_a_late_handler_answers_each_time(call):
    assert [call("GET", "/").status_code for _ in range(2)] == [200, 200]


def test_a_late_route_takes_its_own_methods_only(call, check_error):
    check_error(call("DELETE", "/"), 405, code="method_not_supported")


def test_every_late_route_leads_to_a_handler():
    assert LATE
    for route in LATE:
        handler = asyncio.run(route.handler.load())
        assert inspect.iscoroutinefunction(handler), route.path
        assert handler.__name__ == route.handler.__name__


def test_the_application_imports_none_of_them():
    code = "import sys, zse.serve.app; print(*sys.modules)"
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    loaded = set(output.stdout.split())
    late = [route.handler for route in LATE]
    assert not {asyncio.run(r.load()).__module__ for r in late} & loaded


CHAT = """
import asyncio, json, sys
import scripted_server
from zse.serve.app import create_app
from zse.serve.ledger import Ledger
from zse.serve.state import AppState

async def run():
    state = AppState(ledger=Ledger())
    state.models.put(scripted_server.scripted_model())
    body = {"messages": [{"role": "user", "content": "say:Hello"}], "stream": True}
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    scope |= {"query_string": b"", "raw_path": b"", "root_path": "", "scheme": "http"}
    sent, given = [], [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive():
        return given.pop() if given else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    await create_app(state)(scope, receive, send)
    assert b"[DONE]" in b"".join(message.get("body", b"") for message in sent), sent

asyncio.run(run())
print(*sys.modules)
"""


def test_a_chat_imports_nothing_of_other_protocols_nor_of_streams_that_are_resumed():
    paths = f"{ROOT}:{Path(__file__).parents[1]}:{Path(ROOT) / 'tests' / 'support'}"
    output = subprocess.run(
        [sys.executable, "-c", CHAT],
        capture_output=True,
        text=True,
        check=True,
        env=subprocess_environment(PYTHONPATH=paths),
    )
    loaded = set(output.stdout.split())
    assert "zse.serve.openai.chat" in loaded
    others = ("zse.serve.responses", "zse.serve.anthropic", "zse.serve.answer_parts")
    others += ("zse.serve.transcript", "zse.serve.http.resumable", "zse.serve.http.event_log")
    assert not [name for name in loaded if name.startswith(others)]
