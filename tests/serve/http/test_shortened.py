"""Streams that the engine's thread writes itself: what is read of them, counted and told."""

import asyncio
import json
import time
from dataclasses import replace

import msgspec
import pytest

from zse.engine.inbox import Inbox
from zse.engine.output import RequestText
from zse.text.dialect import Dialect

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = 'Hm.[TOOL_CALLS]f[ARGS]{"a": "héllo"}'


def chat_of(text):
    return {"messages": [{"role": "user", "content": text}], "stream": True}


async def read_stream(served, path, body, *headers):
    """Return the events of an answer."""
    reader, writer = await served.connect()
    data = json.dumps(body).encode()
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: localhost", b"connection: close"]
    lines += [b"content-type: application/json", b"content-length: %d" % len(data), *headers]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + data)
    answer = await asyncio.wait_for(reader.read(), 60)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    content = b""
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        content += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    events = [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


def without_names(events):
    """Return what does not differ between two answers: no ids, no clock."""
    if isinstance(events, dict):
        names = ("id", "created", "signature")
        return {k: without_names(v) for k, v in events.items() if k not in names}
    return [without_names(each) for each in events] if isinstance(events, list) else events


class Passing:
    """A scripted engine that lets every second delta go past the stream, where it may."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.num_passed = 0
        self.num_texts = 0
        """Of these, those that were no delta."""

    def _text_past(self, shortcut, delta):
        is_plain = delta.text and not delta.logprobs and delta.finish_reason is None
        if not is_plain or len(delta.token_ids) != 1:
            return False
        text = msgspec.json.encode(delta.text)
        shortcut.begin_texts(delta.index)
        is_taken = shortcut.take_text(delta.index, text, time.perf_counter(), at_once=False)
        shortcut.end_texts(delta.index)
        self.num_texts += is_taken
        return is_taken

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(self, *args, shortcut=None, **others):
        is_second, num_yielded = False, 0
        async for delta in self._engine.generate(*args, **others):
            await asyncio.sleep(0.001)  # what was written is out
            if shortcut is not None and is_second:
                shortcut.open(num_yielded)
                is_text = self._text_past(shortcut, delta)
                if is_text or shortcut.take([delta], has_time=True):
                    shortcut.write()
                    self.num_passed += 1
                    is_second = False
                    continue
            elif shortcut is not None:
                shortcut.take([delta], has_time=False)
            is_second = True
            num_yielded += 1
            yield delta


@pytest.mark.parametrize(
    ("path", "body", "has_plain_text"),
    [
        (CHAT, chat_of("say:Hello"), True),
        (CHAT, {**chat_of('say:"Hé\\\n'), "n": 3}, True),
        (CHAT, {**chat_of("say:" + CALL), "tools": TOOLS}, False),
        (CHAT, {**chat_of("say:Hello"), "logprobs": True, "n": 2}, False),
        (CHAT, {**chat_of("say:Hello"), "stream_options": {"include_usage": True}}, True),
        (COMPLETIONS, {"prompt": "say:Hello", "stream": True, "n": 2}, True),
        (COMPLETIONS, {"prompt": "say:Hello", "stream": True, "echo": True, "logprobs": 1}, False),
        (MESSAGES, {**chat_of("say:Hello"), "model": "scripted", "max_tokens": 99}, True),
    ],
)
def test_an_answer_reads_the_same_whoever_writes_its_frames(
    make_caller, scripted, serving, path, body, has_plain_text
):
    dialect = Dialect(calls="mistral", controls={"[TOOL_CALLS]": 5, "[ARGS]": 6})
    model = replace(scripted.scripted_model(), dialect=dialect)
    read = {}
    for name, engine in {"loop": model.engine, "both": Passing(model.engine)}.items():
        call = make_caller(replace(model, engine=engine))

        async def talk(app=call.app):
            async with serving(app) as served:
                return await read_stream(served, path, body)

        read[name] = without_names(call.runner.run(talk()))
    assert engine.num_passed > 1
    assert (engine.num_texts > 0) == has_plain_text
    assert read["both"] == read["loop"]


def test_streams_that_are_kept_or_count_always_do_not_go_past_the_loop(
    make_caller, scripted, serving
):
    engine = Passing(scripted.scripted_model().engine)
    call = make_caller(replace(scripted.scripted_model(), engine=engine))
    counting = {**chat_of("say:Hello"), "stream_options": {"continuous_usage_stats": True}}

    async def talk():
        async with serving(call.app) as served:
            await read_stream(served, CHAT, counting)
            await read_stream(served, CHAT, chat_of("say:Hello"), b"x-zse-resumable: 1")
            await read_stream(served, COMPLETIONS, {"prompt": ["say:Hi", "say:Ho"], "stream": True})

    call.runner.run(talk())
    assert engine.num_passed == 0


def test_a_single_stream_wakes_the_loop_for_few_of_its_tokens_and_all_are_counted(
    make_caller, paced, serving, state, monkeypatch
):
    brought, pushed = [], []
    put, push = Inbox.put, RequestText.push
    monkeypatch.setattr(RequestText, "push", lambda *args: (pushed.append(args), push(*args))[1])
    monkeypatch.setattr(Inbox, "put", lambda *args: (brought.append(args), put(*args)))
    model = paced.paced_model(step_seconds=0.003)
    call = make_caller(model)
    body = {**chat_of("x"), "max_tokens": 150, "stream_options": {"include_usage": True}}

    async def talk():
        async with serving(call.app) as served:
            return await read_stream(served, CHAT, body)

    try:
        events = call.runner.run(talk())
    finally:
        model.close()
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    alphabet = "abcdefghijklmnopqrstuvwxyz" * 8
    assert alphabet.find(text) >= 0
    assert len(text) == 150
    assert choices[-1]["finish_reason"] == "length"
    assert events[-2]["usage"]["completion_tokens"] == 150
    gaps = sum(tally.cumulative()[-1] for _, tally in state.metrics.tallies_of("token_gap"))
    assert gaps == 149
    assert len(brought) < 150
    assert len(pushed) < 150  # others were text, and no delta
