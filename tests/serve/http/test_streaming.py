"""The event stream as an ASGI response: silence, errors, disconnects, shutdown."""

import asyncio
import json
import time

import pytest

from zse.errors import EngineError, OverloadedError
from zse.serve.access.policy import InvalidKeyError
from zse.serve.http.streaming import FRAMES, ChunkWriter, EventStream


class Client:
    """Receives a response; can leave after a number of body messages."""

    def __init__(self, leave_after=None) -> None:
        self.messages = []
        self.left = asyncio.Event()
        self.leave_after = leave_after

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.messages.append(message)
        if self.leave_after is not None and len(self.messages) > self.leave_after:
            self.left.set()

    @property
    def status(self):
        return self.messages[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.messages)


def respond(
    frames, client, terminate=None, path="/v1/completions", sink=None, state=None, **options
):
    async def call():
        stop = asyncio.Event()
        if terminate is not None:
            asyncio.get_running_loop().call_later(terminate, stop.set)
        stream = EventStream(frames, terminate=stop, headers={"x-more": "1"}, **options)
        extensions = {} if sink is None else {FRAMES: sink}
        scope = {"type": "http", "method": "POST", "path": path, "extensions": extensions}
        scope["state"] = state or {}
        await stream(scope, client.receive, client.send)

    asyncio.run(call())


def test_frames_are_sent_one_by_one_and_the_end_is_marked():
    async def frames():
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    client = Client()
    respond(frames(), client)
    assert [m.get("body") for m in client.messages[1:]] == [b"data: 1\n\n", b"data: 2\n\n", b""]
    assert [m["more_body"] for m in client.messages[1:]] == [True, True, False]
    assert (b"x-more", b"1") in client.messages[0]["headers"]


@pytest.mark.parametrize("pause_seconds", [0.01, 60.0], ids=["that flows", "that is silent"])
def test_a_stream_whose_key_is_removed_ends_in_an_error_and_stops_its_work(pause_seconds):
    is_closed = []
    looks = iter([True, True, False])

    def may_go_on():
        if not next(looks):
            raise InvalidKeyError("The API key 'leaked' lets in no longer.")

    async def frames():
        try:
            yield b"data: 0\n\n"
            while True:
                await asyncio.sleep(pause_seconds)
                yield b"data: 1\n\n"
        finally:
            is_closed.append(True)

    client = Client()
    respond(frames(), client, state={"may_go_on": may_go_on}, keep_alive_seconds=0.05)
    assert client.status == 200
    error = json.loads(client.messages[-1]["body"].removeprefix(b"data: "))["error"]
    assert "lets in no longer" in error["message"]
    assert client.messages[-1]["more_body"] is False
    assert is_closed == [True]


def test_silence_is_filled_with_comments_before_and_between_frames():
    async def frames():
        while b": keep-alive\n\n" not in client.body:
            await asyncio.sleep(0.01)
        yield b"data: 1\n\n"
        while b": keep-alive\n\n" not in client.body.partition(b"data: 1")[2]:
            await asyncio.sleep(0.01)
        yield b"data: 2\n\n"

    client = Client()
    respond(frames(), client, keep_alive_seconds=0.05)
    assert client.body.endswith(b"data: 2\n\n")


def test_a_stream_that_another_thread_writes_is_not_silent():
    class Lent:
        written_at = time.perf_counter() + 1000

        def take(self, frame, *, waits):
            return False

    async def frames():
        yield b"data: 1\n\n"
        await asyncio.sleep(0.3)
        yield b"data: 2\n\n"

    client = Client()
    respond(frames(), client, sink=Lent(), keep_alive_seconds=0.05)
    assert client.body == b"data: 1\n\ndata: 2\n\n"


def test_a_refusal_before_the_first_frame_keeps_its_status():
    async def frames():
        raise OverloadedError("full")
        yield b""

    client = Client()
    respond(frames(), client)
    assert client.status == 429


def test_a_failure_after_the_first_frame_is_an_event_and_the_end():
    async def frames():
        yield b"data: 1\n\n"
        raise EngineError("broken at /opt/secret/x")

    client = Client()
    respond(frames(), client)
    assert client.status == 200
    assert client.body.startswith(b'data: 1\n\ndata: {"error":{')
    assert b"/opt" not in client.body
    assert client.messages[-1]["more_body"] is False


def test_anthropics_routes_hear_pings_and_their_own_errors():
    async def frames():
        yield b"event: message_start\n\n"
        while b"event: ping" not in client.body:
            await asyncio.sleep(0.01)
        raise EngineError("broken")

    client = Client()
    respond(frames(), client, path="/v1/messages", keep_alive_seconds=0.05)
    assert b'event: ping\ndata: {"type":"ping"}\n\n' in client.body
    last = client.body.split(b"\n\n")[-2]
    assert last.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error",')


def test_a_protocol_may_say_a_failure_in_its_own_words():
    async def frames():
        yield b"data: 1\n\n"
        raise EngineError("broken")

    client = Client()
    respond(frames(), client, failure=lambda error: b"data: %s\n\n" % type(error).__name__.encode())
    assert client.body == b"data: 1\n\ndata: EngineError\n\n"


def test_a_client_that_leaves_closes_the_generator():
    closed = []

    async def frames():
        try:
            while True:
                yield b"data: 1\n\n"
                await asyncio.sleep(0)
        finally:
            closed.append(True)

    respond(frames(), Client(leave_after=3))
    assert closed == [True]


@pytest.mark.parametrize("has_begun", [True, False])
def test_shutdown_ends_a_stream_with_an_error(has_begun):
    async def frames():
        if has_begun:
            yield b"data: 1\n\n"
        await asyncio.sleep(60)
        yield b""

    client = Client()
    respond(frames(), client, terminate=0.1)
    assert client.status == (200 if has_begun else 503)
    assert b'"code":"server_is_overloaded"' in client.body


def test_a_spliced_chunk_equals_an_encoded_one():
    writer = ChunkWriter({"id": "x", "object": "o"}, include_usage=True)
    text = 'quotes " and \\ and ü\u2028'
    whole = writer.choice(
        {"index": 3, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    )
    assert writer.chat_text(3, text) == whole
    whole = writer.choice({"text": text, "index": 3, "logprobs": None, "finish_reason": None})
    assert (
        ChunkWriter({"id": "x", "object": "o"}, include_usage=True).completion_text(3, text)
        == whole
    )
