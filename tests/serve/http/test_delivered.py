"""Steps of several tokens and choices, through the real way past the loop: every byte, in order."""

import asyncio
import contextlib
import json
import os
import random
from types import SimpleNamespace

import pytest

from zse.engine.delivery import StreamsInFlight
from zse.engine.inbox import UnreadBounds
from zse.engine.request import Request, SamplingParams, TokenEvent
from zse.serve.http.framing import as_chunk
from zse.serve.http.shortcut import Shortcut

TEXT = 'plain words and "quotes\\", é, 中文 and 🦀, '


class ByteTokenizer:
    """A byte a token, so that characters come in parts."""

    special_ids = frozenset()
    facts = SimpleNamespace(kind="bytes", strips_space=False)

    def token_bytes(self, token_id):
        if token_id > 255:
            raise KeyError(token_id)
        return bytes([token_id])


def line_of(delta):
    return b"%d:%b\n" % (delta.index, json.dumps(delta.text).encode())


class PipeSink:
    """Stands for a connection whose socket is a pipe, which the loop writes to as well."""

    def __init__(self, descriptor, dice):
        self.descriptor = descriptor
        self.borrower = None
        self._dice = dice

    def lend(self, borrower):
        self.borrower = borrower
        return None if self._dice.random() < 0.2 else self.descriptor

    def take_back(self):
        if self.borrower is not None:
            os.write(self.descriptor, self.borrower.settle())


def events_of(choices, dice):
    """Yield steps: of each choice some tokens, and in the end a last one."""
    left = {index: list(data) for index, data in enumerate(choices)}
    while left:
        step = []
        for index in dice.sample(sorted(left), len(left)):
            for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
                if not left.get(index):
                    break
                token, is_last = left[index].pop(0), not left[index]
                reason = "length" if is_last else None
                step.append(TokenEvent("r", index, token, finish_reason=reason))
                if is_last:
                    del left[index]
        yield step


def delivered(steps, num_choices, dice, *, frames_of=None):
    """Return what is written of some steps, and how many tokens were texts."""
    read, write = os.pipe()
    counted = []

    async def run():
        streams = StreamsInFlight(
            ByteTokenizer(), UnreadBounds(), abort=lambda *_: None, cancel=lambda _: None
        )
        sink = PipeSink(write, dice)
        shortcut = Shortcut(
            sink,
            frames_of or (lambda deltas: b"".join(map(line_of, deltas))),
            around=lambda index: (b"%d:" % index, b"\n"),
            count=counted.extend,
        )
        params = SamplingParams(n=num_choices, max_tokens=10_000)
        request = Request(request_id="r", prompt_token_ids=[1], params=params)
        stream = streams.make(request, lambda: None, shortcut)
        streams.add(stream)

        async def write_what_comes():
            num_open = num_choices
            while num_open:
                delta = await stream.inbox.get()
                sink.take_back()
                os.write(write, as_chunk(line_of(delta)))
                num_open -= delta.finish_reason is not None

        writing = asyncio.create_task(write_what_comes())
        content = b""
        for step in steps:
            streams.deliver(step)
            if dice.random() < 0.1:
                sink.take_back()  # as a comment would
            for _ in range(dice.choice([0, 2])):
                await asyncio.sleep(0)
            os.set_blocking(read, False)
            with contextlib.suppress(BlockingIOError):
                content += os.read(read, 1 << 16)
        try:
            await asyncio.wait_for(writing, 60)
        finally:
            sink.take_back()
            streams.remove(stream)
            streams.close()
            await asyncio.sleep(0)
            os.close(write)
            with os.fdopen(read, "rb") as rest:
                content += rest.read() or b""
        shortcut.count()
        return content

    return asyncio.run(run()), len(counted)


def texts_of(content):
    """Return what each choice says, chunk by chunk."""
    texts = {}
    while content:
        size, _, rest = content.partition(b"\r\n")
        chunk, content = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert rest[int(size, 16) :][:2] == b"\r\n"
        for line in chunk.splitlines():
            index, _, text = line.partition(b":")
            texts[int(index)] = texts.get(int(index), "") + json.loads(text)
    return texts


@pytest.mark.parametrize("most_written", [0, 32], ids=["by the loop", "by the engine"])
@pytest.mark.parametrize("seed", range(8))
def test_each_choice_reads_as_it_was_made_however_its_tokens_went(seed, most_written, monkeypatch):
    monkeypatch.setattr("zse.engine.delivery._MOST_WRITTEN", most_written)
    dice = random.Random(seed)
    said = [TEXT * dice.randrange(3, 12) for _ in range(dice.choice([1, 1, 3]))]
    steps = events_of([text.encode() for text in said], dice)
    content, num_texts = delivered(steps, len(said), dice)
    assert texts_of(content) == dict(enumerate(said))
    assert num_texts > 20


def test_a_token_that_has_no_text_ends_its_answer_alone(caplog):
    steps = [[TokenEvent("r", 0, 65)], [TokenEvent("r", 0, 66)], [TokenEvent("r", 0, 999)]]
    with pytest.raises(Exception, match="has no text"):
        delivered([*steps, [TokenEvent("r", 0, 67)]], 1, random.Random(1))
    assert "could not be made" in caplog.text
