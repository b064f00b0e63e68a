"""One MCP server, connected: started, listed, called, and started again when it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

from zse.records import record
from zse.serve.mcp.offers import MOST_TOOLS, McpTool, offers_of, told_of
from zse.tools.registry import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp import Client

    from zse.serve.mcp.servers import McpServer

_LOG = logging.getLogger("zse.serve.mcp")
_MOST_PAGES = 32


@record
class Patience:
    """How long a server is waited for, and how soon it is started again."""

    call_seconds: float = 10.0
    """For one call, and for one listing."""
    connect_seconds: float = 20.0
    look_seconds: float = 60.0
    """Between two looks at what it lists, which also tell that it has died."""
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0


class Connection:
    """Keeps one server connected. All of it but ``call`` belongs to one event loop.

    Args:
        publish: Called with its tools at each look. While it is away they stay, and calls say so.
    """

    def __init__(
        self, server: McpServer, publish: Callable[[list[McpTool]], None], patience: Patience
    ) -> None:
        self._server = server
        self._publish = publish
        self._patience = patience
        self._client: Client | None = None
        self._broken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.tried = asyncio.Event()
        """Set when it was connected once, or could not be."""

    async def run(self) -> None:
        """Connect and stay connected until cancelled. What fails is logged, and tried again."""
        pause = self._patience.first_pause_seconds
        while True:
            began = self._loop.time()
            reason = await self._attempt()
            self.tried.set()
            if self._loop.time() - began > self._patience.longest_pause_seconds:
                pause = self._patience.first_pause_seconds
            _LOG.warning(
                "an MCP server is away: %s",
                reason,
                extra={"server": self._server.name, "again_in_seconds": pause},
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._patience.longest_pause_seconds)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool from another thread, and wait for it.

        Raises:
            ToolError: It failed, took too long, or the server is away.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(self._call(name, arguments), self._loop)
        except RuntimeError:
            raise ToolError("the server of this tool is away") from None
        return future.result()

    async def _attempt(self) -> str:
        """Be connected once; return why that ended."""
        try:
            await self._connected()
        except TimeoutError:
            return "it does not answer"
        except Exception as error:  # noqa: BLE001 - a stranger's defect ends nothing of ours
            return _reason(error)
        finally:
            self._client = None
        return "it died or hung"

    async def _connected(self) -> None:
        patience = self._patience
        self._broken.clear()
        async with asyncio.timeout(patience.connect_seconds) as opening:
            async with self._new_client() as client:
                await self._look(client)
                opening.reschedule(None)
                self._client = client
                self.tried.set()
                _LOG.info("an MCP server is connected", extra={"server": self._server.name})
                while not await self._is_broken_within(patience.look_seconds):
                    async with asyncio.timeout(patience.call_seconds):
                        await self._look(client)

    def _new_client(self) -> Client:
        from mcp import Client, StdioServerParameters, stdio_client

        if self._server.url:
            return Client(self._server.url)
        program, *words = self._server.command
        # The SDK hands on HOME, PATH, USER and the like, and no other variable: no key, no token.
        started = StdioServerParameters(command=program, args=words)
        return Client(stdio_client(started, errlog=sys.stderr))

    async def _look(self, client: Client) -> None:
        listed, cursor = [], None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            listed += page.tools
            cursor = page.next_cursor
            if not cursor or len(listed) > MOST_TOOLS:
                break
        self._publish(offers_of(self._server.name, listed, self.call))

    async def _is_broken_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._broken.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError

        client, seconds = self._client, self._patience.call_seconds
        if client is None:
            raise ToolError("the server of this tool is away; it is being started again")
        try:
            async with asyncio.timeout(seconds):
                return told_of(await client.call_tool(name, arguments))
        except ToolError:
            raise
        except TimeoutError:
            self._broken.set()
            raise ToolError(
                f"the server of this tool did not answer within {seconds:g} s"
            ) from None
        except MCPError as error:
            # What the server answers is the model's affair; a connection that ended is ours.
            if error.code == _connection_closed():
                self._broken.set()
            raise ToolError(str(error)[:500]) from None
        except Exception as error:  # noqa: BLE001 - as above
            self._broken.set()
            raise ToolError(f"the server of this tool failed: {_reason(error)}") from None


def _connection_closed() -> int:
    from mcp.types import CONNECTION_CLOSED

    return int(CONNECTION_CLOSED)


def _reason(error: BaseException) -> str:
    """Return what happened, of the first failure in a group of them."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:300]}"
