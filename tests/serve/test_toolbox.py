"""The server's tools: what waits for them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import msgspec

from zse.option import with_values
from zse.serve.toolbox import Toolbox
from zse.server_options import ServeOptions
from zse.tools.registry import Tool, ToolRegistry


class Nothing(msgspec.Struct):
    pass


def test_tools_that_take_long_keep_nothing_else_of_the_server_waiting():
    may_end = threading.Event()
    toolbox = Toolbox(SimpleNamespace(options=with_values(ServeOptions(), {})))
    wait = Tool("wait", "Waits.", Nothing, lambda _: may_end.wait(5))
    toolbox.registry = ToolRegistry([wait])

    async def both():
        calls = [
            asyncio.create_task(toolbox.run("wait", {}, request_id="", key_name=""))
            for _ in range(40)
        ]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(asyncio.to_thread(str), 2)
        may_end.set()
        return await asyncio.gather(*calls)

    assert [one.output for one in asyncio.run(both())] == ["true"] * 40
