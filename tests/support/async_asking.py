"""Asking an asynchronous engine, and waiting for what it does."""

from __future__ import annotations

import asyncio
import threading

from zse.engine.request import Request, SamplingParams

PROMPT = [3, 1, 4, 1, 5]


def greedy(**fields):
    fields.setdefault("max_tokens", 8)
    return SamplingParams(temperature=0.0, **fields)


def asked(prompt=PROMPT, params=None, **fields):
    return Request(request_id="", prompt_token_ids=prompt, params=params or greedy(), **fields)


async def collect(async_engine, prompt=PROMPT, params=None, **fields):
    beside = ("deadline", "on_choice_end", "shortcut")
    options = {name: fields.pop(name) for name in beside if name in fields}
    stream = async_engine.generate(asked(prompt, params, **fields), **options)
    return [delta async for delta in stream]


def text_of(deltas, index=0):
    return "".join(delta.text for delta in deltas if delta.index == index)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def gated_runner(engine):
    """A runner that waits for its gate before each step."""
    gate, runner = threading.Event(), engine.Runner()
    submit = runner.submit
    runner.submit = lambda batch: (gate.wait(), submit(batch))[1]
    return gate, runner


async def until_idle(async_engine):
    await until(lambda: async_engine.stats().num_running == 0)
