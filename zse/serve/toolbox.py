"""The tools that this server runs itself: those that its operator named, for all requests."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.tools.builtin import builtin_tools
from zse.tools.registry import ToolLimits, ToolRegistry

if TYPE_CHECKING:
    from zse.serve.mcp.connections import Connections
    from zse.serve.state import AppState
    from zse.server_options import ToolOptions
    from zse.tools.registry import ToolResult

_MOST_AT_ONCE = 8
_LOG = logging.getLogger("zse.serve.tools")


class Toolbox:
    """Runs tools off the event loop and logs each call, without what it was called with.

    Args:
        state: Its options name the tools; without any there are none.

    Raises:
        UsageError: A tool is not known, or has no hosts to ask.
    """

    def __init__(self, state: AppState) -> None:
        options = state.options.server_tools
        self.registry = ToolRegistry(
            builtin_tools(options.tools, hosts=options.hosts),
            ToolLimits(timeout_seconds=options.timeout_seconds),
        )
        self.rounds = options.rounds
        self._connections = _connected(options, self.registry)
        # Of its own: whoever waits for tools keeps nothing else of the server waiting.
        self._waiting = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="zse-toolbox")

    async def settle(self) -> None:
        """Wait until the tools of other programs are there, or it is known that they are not."""
        if self._connections is not None:
            seconds = self.registry.limits.timeout_seconds
            await asyncio.get_running_loop().run_in_executor(
                self._waiting, self._connections.wait, seconds
            )

    def close(self) -> None:
        """End the programs that were started for their tools."""
        if self._connections is not None:
            self._connections.close()

    async def run(
        self, name: str, arguments: object, *, request_id: str, key_name: str
    ) -> ToolResult:
        """Run a tool for a request.

        Args:
            arguments: An object, or its JSON text.
            key_name: Whose request it is; empty for anybody's.

        Raises:
            UsageError: There is no such tool.
        """
        loop = asyncio.get_running_loop()
        execute = self.registry.execute
        result = await loop.run_in_executor(self._waiting, execute, name, arguments)
        _LOG.info(
            "a tool ran",
            extra={
                "tool": name,
                "request_id": request_id,
                "key": key_name or None,
                "is_error": result.is_error,
                "duration_ms": round(result.seconds * 1000, 1),
            },
        )
        return result


def _connected(options: ToolOptions, registry: ToolRegistry) -> Connections | None:
    if not options.mcp:
        return None
    from zse.serve.mcp.connection import Patience
    from zse.serve.mcp.connections import Connections
    from zse.serve.mcp.servers import read_servers

    # A call ends before the registry gives it up, and leaves no thread behind.
    patience = Patience(call_seconds=0.9 * options.timeout_seconds)
    return Connections(read_servers(options.mcp), registry, patience)
