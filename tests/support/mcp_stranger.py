"""An MCP server that tests start: good, failing, dying and hanging tools."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("stranger")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool(name="odd.name/here")
def odd() -> str:
    """Has a name that no model may call."""
    return "odd"


@server.tool()
def variables() -> list[str]:
    """The names of its environment's variables."""
    return sorted(os.environ)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no luck")


@server.tool()
def long() -> str:
    """Says much."""
    return "x" * 200_000


@server.tool()
def die() -> str:
    """Ends the process."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answers."""
    time.sleep(60)
    return ""


@server.tool()
def pid() -> int:
    """Of the process."""
    return os.getpid()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    server.run("stdio")
