"""All MCP servers of a process, on an event loop in a thread of its own: none can stall it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from zse.serve.mcp.connection import Connection, Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.mcp.servers import McpServer
    from zse.tools.registry import ToolRegistry

_END_SECONDS = 8.0
"""What a child may take to leave: the SDK closes its input, then ends it, then kills it."""


class Connections:
    """Connects servers and keeps their tools in a registry.

    Args:
        servers: One or more.
        registry: Gets the tools of each as a group of its name.
    """

    def __init__(
        self, servers: Sequence[McpServer], registry: ToolRegistry, patience: Patience | None = None
    ) -> None:
        self._servers = servers
        self._registry = registry
        self._patience = patience or Patience()
        self._tried = threading.Event()
        self._opened = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name="zse-mcp", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until each server was connected or could not be; return whether that is so."""
        return self._tried.wait(seconds)

    def close(self) -> None:
        """End the children and connections."""
        self._opened.wait(_END_SECONDS)
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        finally:
            self._opened.set()
            self._tried.set()

    async def _run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._opened.set()
        async with asyncio.TaskGroup() as group:
            made = [
                Connection(
                    one,
                    lambda tools, name=one.name: self._registry.put(name, tools),  # type: ignore[misc]
                    self._patience,
                )
                for one in self._servers
            ]
            for connection in made:
                group.create_task(connection.run())
            for connection in made:
                await connection.tried.wait()
            self._tried.set()
