"""The server's tools: what waits for them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import msgspec

from zse.option import with_values
from zse.serve.access.caller import Caller
from zse.serve.toolbox import Toolbox
from zse.server_options import ServeOptions
from zse.tools.registry import Tool, ToolRegistry


class Nothing(msgspec.Struct):
    pass


def test_tools_that_take_long_keep_nothing_else_of_the_server_waiting():
    may_end = threading.Event()
    toolbox = Toolbox(SimpleNamespace(options=with_values(ServeOptions(), {})))
    wait = Tool("wait", "Waits.", Nothing, lambda _: may_end.wait(60))
    toolbox.registry = ToolRegistry([wait])

    async def both():
        calls = [
            asyncio.create_task(toolbox.run("wait", {}, request_id="", caller=Caller()))
            for _ in range(40)
        ]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(asyncio.to_thread(str), 30)
        may_end.set()
        return await asyncio.gather(*calls)

    assert [one.output for one in asyncio.run(both())] == ["true"] * 40


def test_a_key_whose_tools_take_long_leaves_room_to_others_and_is_told_when_too_many_wait():
    may_end = threading.Event()
    toolbox = Toolbox(SimpleNamespace(options=with_values(ServeOptions(), {})))
    wait = Tool("wait", "Waits.", Nothing, lambda _: may_end.wait(120))
    soon = Tool("soon", "Does not.", Nothing, lambda _: "done")
    toolbox.registry = ToolRegistry([wait, soon])
    greedy, other = Caller(key_id="greedy"), Caller(key_id="other")

    async def flood():
        calls = [
            asyncio.create_task(toolbox.run("wait", {}, request_id="", caller=greedy))
            for _ in range(400)
        ]
        await asyncio.sleep(0.05)
        answer = await asyncio.wait_for(toolbox.run("soon", {}, request_id="", caller=other), 60)
        may_end.set()
        return answer, await asyncio.gather(*calls)

    answer, flooded = asyncio.run(flood())
    assert answer.output == "done"
    refused = [one for one in flooded if one.is_error]
    assert 100 < len(refused) < 300
    assert all("try again" in one.output for one in refused)
