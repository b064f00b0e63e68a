"""Deltas that go past their inbox in the engine's thread: which do, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time

import pytest
from async_asking import PROMPT, asked

from zse.engine.async_engine import AsyncEngine
from zse.engine.request import SamplingParams
from zse.errors import DeadlineError, EngineError


class Notes:
    """A shortcut that notes what it takes; where told to, it fails at that delta."""

    def __init__(self, texts: list[str] | None = None, *, fails_at: int = -1) -> None:
        self.is_open = False
        self.texts: list[str] = [] if texts is None else texts
        self.num_taken = 0
        self.num_texts = 0
        self.with_texts: set[int] = set()
        self._unwritten: list[str] = []
        self.writers: set[int] = set()
        self._dice = random.Random(3)
        self.num_left = 0
        self.is_taking = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._fails_at = fails_at

    def open(self, num_arrived):
        self.is_open = num_arrived == self.num_left

    def close(self):
        self.is_open = False

    @property
    def has_texts(self):
        return bool(self.with_texts)

    def begin_texts(self, index):
        self.with_texts.add(index)

    def end_texts(self, index):
        self.with_texts.discard(index)

    def take_text(self, index, text, now, *, at_once):
        is_wanted = index in self.with_texts and self._fails_at < 0
        if not self.is_open or not is_wanted or self._dice.random() < 0.3:
            return False
        self.num_texts += 1
        self._loop.call_soon_threadsafe(self.is_taking.set)
        self._unwritten.append(json.loads(text))
        if at_once:
            self.write()
        return True

    def take(self, deltas, *, has_time):
        has_end = any(delta.finish_reason is not None for delta in deltas)
        self.is_open = self.is_open and has_time and not has_end
        if not self.is_open:
            self.num_left += len(deltas)
            return False
        if self.num_taken == self._fails_at:
            raise ValueError("no frame can be made of it")
        self.num_taken += 1
        self._loop.call_soon_threadsafe(self.is_taking.set)
        self._unwritten.extend(delta.text for delta in deltas)
        return True

    def write(self):
        if self._unwritten:
            self.writers.add(threading.get_ident())
        self.texts.extend(self._unwritten)
        self._unwritten.clear()


def greedy(max_tokens=300):
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


@pytest.fixture
def make_engine(engine, letters):
    made = []

    def make(before_step=lambda: None, **options):
        runner = engine.Runner(num_blocks=512, max_position=4096)
        submit = runner.submit
        runner.submit = lambda batch: (before_step(), submit(batch))[1]
        made.append(AsyncEngine(engine.core(runner, **options), letters))
        return made[-1]

    yield make
    for async_engine in made:
        async_engine.close()


def test_what_goes_past_and_what_is_yielded_are_the_answer_and_its_end_is_yielded(
    engine, letters, make_engine
):
    async def main():
        texts = []
        async_engine, shortcut = make_engine(), Notes(texts)
        async for delta in async_engine.generate(asked(params=greedy()), shortcut=shortcut):
            texts.append(delta.text)
            last = delta
        return shortcut, "".join(texts), last

    shortcut, text, last = asyncio.run(main())
    assert text == letters.decode(engine.expected_tokens(PROMPT, greedy()))
    assert shortcut.num_taken
    assert shortcut.num_texts
    assert last.finish_reason == "length"
    assert not shortcut.is_open


def test_a_frame_that_cannot_be_made_ends_its_answer_and_no_other(make_engine):
    async def main():
        async_engine = make_engine()
        other = asyncio.create_task(collect(async_engine))
        with pytest.raises(EngineError, match="no frame can be made"):
            await collect(async_engine, shortcut=Notes(fails_at=3))
        return await other, await collect(async_engine)

    for deltas in asyncio.run(main()):
        assert deltas[-1].finish_reason == "length"


async def collect(async_engine, **fields):
    return [delta async for delta in async_engine.generate(asked(params=greedy()), **fields)]


def test_nothing_goes_past_an_answer_that_was_ended_or_left(make_engine):
    async def main():
        async_engine, late, left = make_engine(lambda: time.sleep(0.001)), Notes(), Notes()
        deadline = asyncio.get_running_loop().time() + 0.1
        stream = async_engine.generate(asked(params=greedy(2000)), shortcut=late, deadline=deadline)
        with pytest.raises(DeadlineError):
            async for _ in stream:
                pass
        stream = async_engine.generate(asked(params=greedy(2000)), shortcut=left)
        waiting = asyncio.create_task(anext(stream))
        await left.is_taking.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return late.is_open, left.is_open

    assert asyncio.run(main()) == (False, False)


def test_of_more_answers_than_the_engines_thread_has_time_for_the_loop_writes_the_texts(
    engine, letters, make_engine
):
    async def one(async_engine, shortcut, texts):
        async for delta in async_engine.generate(asked(params=greedy(60)), shortcut=shortcut):
            texts.append(delta.text)

    async def main():
        all_are_there, loop = threading.Event(), asyncio.get_running_loop()

        def have_the_loop_go_on():
            all_are_there.wait()
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)

        async_engine = make_engine(have_the_loop_go_on, max_sequences=40)
        answers = [[] for _ in range(40)]
        shortcuts = [Notes(texts) for texts in answers]
        tasks = [
            asyncio.create_task(one(async_engine, *each))
            for each in zip(shortcuts, answers, strict=True)
        ]
        while async_engine.num_active < 40:
            await asyncio.sleep(0)
        all_are_there.set()
        await asyncio.gather(*tasks)
        assert not sum(shortcut.num_taken for shortcut in shortcuts)
        assert sum(shortcut.num_texts for shortcut in shortcuts) > 0
        assert set().union(*(each.writers for each in shortcuts)) == {threading.get_ident()}
        return answers

    wanted = letters.decode(engine.expected_tokens(PROMPT, greedy(60)))
    assert {"".join(texts) for texts in asyncio.run(main())} == {wanted}
