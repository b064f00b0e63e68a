"""What --mcp is given."""

import pytest

from zse.errors import MissingDependencyError, UsageError
from zse.serve.mcp import servers
from zse.serve.mcp.servers import McpServer, check_servers, read_servers


def test_commands_and_addresses_are_told_apart():
    assert read_servers(["files=npx -y 'a server' /tmp", "web=https://example.com/mcp"]) == [
        McpServer(name="files", command=("npx", "-y", "a server", "/tmp")),
        McpServer(name="web", url="https://example.com/mcp"),
    ]


@pytest.mark.parametrize(
    "given",
    [["files"], ["=npx"], ["files="], ["a b=npx"], ["a_b=npx"], ["f='open"], ["x=a", "x=b"]],
)
def test_what_names_no_server_is_refused(given):
    with pytest.raises(UsageError, match="--mcp"):
        read_servers(given)


def test_a_missing_sdk_is_told_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr(servers, "find_spec", lambda name: None)
    check_servers([])
    with pytest.raises(MissingDependencyError) as told:
        check_servers(["files=npx"])
    assert "[mcp]" in told.value.hint
