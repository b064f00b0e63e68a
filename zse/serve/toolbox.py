"""The tools that this server runs itself: those that its operator named, for all requests."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from zse.errors import OverloadedError
from zse.serve.fair_queue import FairQueue
from zse.tools.builtin import builtin_tools
from zse.tools.registry import ToolLimits, ToolRegistry, ToolResult

if TYPE_CHECKING:
    from zse.serve.access.caller import Caller
    from zse.serve.mcp.connections import Connections
    from zse.serve.state import AppState
    from zse.server_options import ToolOptions

_MOST_AT_ONCE = 8
_MOST_OF_KEY = 4
_MOST_WAITING = 256
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
        self._queue = FairQueue(at_once=_MOST_AT_ONCE, each=_MOST_OF_KEY, most=_MOST_WAITING)

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
        self, name: str, arguments: object, *, request_id: str, caller: Caller
    ) -> ToolResult:
        """Run a tool for a request; that too many wait for theirs is a result that says so.

        Args:
            arguments: An object, or its JSON text.
            caller: Whose request it is.

        Raises:
            UsageError: There is no such tool.
        """
        loop, execute = asyncio.get_running_loop(), self.registry.execute
        start = partial(loop.run_in_executor, self._waiting, execute, name, arguments)
        try:
            result = await self._queue.run(caller.tenant, start)
        except OverloadedError as error:
            output = f"error: {error.message}"
            result = ToolResult(name=name, output=output, is_error=True, seconds=0.0)
        _LOG.info(
            "a tool ran",
            extra={
                "tool": name,
                "request_id": request_id,
                "key": caller.name or None,
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
