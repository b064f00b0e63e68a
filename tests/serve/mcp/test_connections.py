"""Tools of a real MCP server in a child process: listed, called, failing, dying, hanging."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import mcp_stranger
from zse.serve.mcp.connection import Patience
from zse.serve.mcp.connections import Connections
from zse.serve.mcp.servers import McpServer
from zse.tools.registry import ToolLimits, ToolRegistry

SCRIPT = str(Path(mcp_stranger.__file__))


@pytest.fixture(scope="module")
def patience():
    """More than any machine needs; a test may have less of it for a moment."""
    usual = Patience(call_seconds=60, connect_seconds=60, look_seconds=30, first_pause_seconds=0.05)
    return SimpleNamespace(**{name: getattr(usual, name) for name in usual.__dataclass_fields__})


@pytest.fixture(scope="module")
def registry(patience):
    os.environ["ZSE_API_KEYS_OF_A_TEST"] = "secret"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    far = subprocess.Popen([sys.executable, SCRIPT, str(port)], stderr=subprocess.DEVNULL)
    registry = ToolRegistry([], ToolLimits(timeout_seconds=120))
    connections = Connections(
        [
            McpServer(name="it", command=(sys.executable, SCRIPT)),
            McpServer(name="gone", command=("/no/such/program",)),
            McpServer(name="far", url=f"http://127.0.0.1:{port}/mcp"),
        ],
        registry,
        patience,
    )
    try:
        assert connections.wait(120)
        yield registry
    finally:
        del os.environ["ZSE_API_KEYS_OF_A_TEST"]
        connections.close()
        registry.close()
        far.terminate()
        far.wait()


def pid_when_back(registry):
    for _ in range(2400):
        result = registry.execute("it_pid", {})
        if not result.is_error:
            return int(result.output)
        time.sleep(0.05)
    raise AssertionError(result.output)


def test_a_server_at_an_address_is_tried_until_it_is_up_and_called(registry):
    for _ in range(2400):
        if "far_add" in registry:
            break
        time.sleep(0.05)
    for _ in range(10):  # beside other work a call may take longer than it may
        result = registry.execute("far_add", {"a": 1, "b": 2})
        if not result.is_error:
            break
    assert result.output == "3"
    assert registry.execute("far_fail", {}).is_error


def test_tools_are_offered_under_their_servers_name_with_their_own_schema(registry):
    (add,) = registry.definitions(["it_add"])
    assert add["function"]["description"] == "Adds."
    assert set(add["function"]["parameters"]["properties"]) == {"a", "b"}
    assert "it_odd_name_here" in registry
    assert not [name for name in registry.names if name.startswith("gone")]


def test_a_call_is_answered_under_the_name_that_the_server_knows(registry):
    assert registry.execute("it_add", '{"a": 40, "b": 2}').output == "42"
    assert registry.execute("it_odd_name_here", {}).output == "odd"


def test_what_fails_there_is_told_to_the_model(registry):
    for name, arguments, said in (
        ("it_fail", {}, "fail"),
        ("it_add", {"a": "many", "b": 1}, "valid integer"),
        ("it_add", "[1]", "no JSON object"),
    ):
        result = registry.execute(name, arguments)
        assert result.is_error
        assert said in result.output


def test_an_answer_is_cut_at_the_limit(registry):
    result = registry.execute("it_long", {})
    assert not result.is_error
    assert len(result.output) < 17_000


def test_a_child_gets_no_variable_of_ours(registry):
    said = registry.execute("it_variables", {}).output
    assert "PATH" in said
    assert "ZSE_API_KEYS_OF_A_TEST" not in said


def test_a_server_that_dies_is_an_error_and_started_again(registry):
    before = pid_when_back(registry)
    assert registry.execute("it_die", {}).is_error
    assert pid_when_back(registry) != before


def test_a_server_that_hangs_is_given_up_in_time_and_started_again(registry, patience, monkeypatch):
    before = pid_when_back(registry)
    with monkeypatch.context() as impatient:
        impatient.setattr(patience, "call_seconds", 0.5)
        result = registry.execute("it_hang", {})
    assert result.is_error
    assert "within 0.5 s" in result.output
    assert pid_when_back(registry) != before
