"""Streams that outlive their connections: resumed, bounded, private, given up in the end."""

import asyncio
import json
from contextlib import aclosing

import httpx
import pytest

from zse.errors import OverloadedError
from zse.serve.access.caller import ANYBODY, Caller
from zse.serve.http.errors import UnknownIdError
from zse.serve.http.resumable import ResumableStreams
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.server_options import ServeOptions

SCOPE = {"path": "/v1/chat/completions", "state": {"caller": ANYBODY, "request_id": "r"}}
RESUMABLE = {"x-zse-resumable": "1"}


def streams(**options):
    return ResumableStreams(AppState(ledger=Ledger(), options=ServeOptions(**options)))


async def numbers(count, ended=None):
    try:
        for number in range(count):
            yield b"data: %d\n\n" % number
            await asyncio.sleep(0)
    finally:
        if ended is not None:
            ended.append(True)


def test_a_stream_goes_on_without_its_reader_and_is_read_on_from_where_it_was():
    async def run():
        kept = streams()
        stream = kept.add(SCOPE, "one", numbers(6))
        async with aclosing(stream.events()) as events:
            first = [await anext(events), await anext(events)]
        rest = [event async for event in kept.get("", "one").events(after=1)]
        assert first + rest == [b"id: %d\ndata: %d\n\n" % (n, n) for n in range(6)]
        stream.give_up()

    asyncio.run(run())


def test_a_stream_that_nobody_comes_back_to_is_given_up_and_forgotten():
    async def run():
        ended = []
        kept = streams(resume_seconds=0.05)
        stream = kept.add(SCOPE, "one", numbers(10**9, ended))
        async with aclosing(stream.events()) as events:
            await anext(events)
            await asyncio.sleep(0.1)
            assert not ended  # somebody reads it
        while not ended:
            await asyncio.sleep(0.01)
        with pytest.raises(UnknownIdError):
            kept.get("", "one")

    asyncio.run(run())


def test_a_stream_that_is_ended_ends_for_its_readers():
    async def run():
        stream = streams().add(SCOPE, "one", numbers(10**9))
        async with aclosing(stream.events()) as events:
            await anext(events)
            stream.give_up()
            rest = [event async for event in events]
        assert len(rest) < 10
        unstarted = streams().add(SCOPE, "two", numbers(10**9))
        unstarted.give_up()
        assert [event async for event in unstarted.events()] == []

    asyncio.run(run())


def test_a_server_that_stops_says_so_in_the_stream():
    async def run():
        state = AppState(ledger=Ledger(), options=ServeOptions())
        ended = []
        stream = ResumableStreams(state).add(SCOPE, "one", numbers(10**9, ended))
        async with aclosing(stream.events()) as events:
            await anext(events)
            state.terminate.set()
            *_, last = [event async for event in events]
        assert b'"code":"server_is_overloaded"' in last
        assert ended
        stream.give_up()

    asyncio.run(run())


def test_streams_of_others_are_unknown():
    async def run():
        kept = streams()
        stream = kept.add(SCOPE, "one", numbers(1))
        with pytest.raises(UnknownIdError):
            kept.get("another", "one")
        stream.give_up()

    asyncio.run(run())


def test_those_that_are_over_make_room_and_those_in_use_do_not():
    async def run():
        kept = streams(resumable_streams=1)
        over = kept.add(SCOPE, "one", numbers(1))
        while not over.log.is_over:
            await asyncio.sleep(0)
        running = kept.add(SCOPE, "two", numbers(10**9))
        with pytest.raises(UnknownIdError):
            kept.get("", "one")
        with pytest.raises(OverloadedError):
            kept.add(SCOPE, "three", numbers(1))
        running.give_up()

    asyncio.run(run())


def test_a_failure_behind_the_first_event_is_an_event_for_whoever_comes_back():
    async def failing():
        yield b"data: 0\n\n"
        raise ValueError("secret")

    async def run():
        stream = streams().add(SCOPE, "one", failing())
        events = [event async for event in stream.events()]
        assert events[0] == b"id: 0\ndata: 0\n\n"
        assert events[1].startswith(b'id: 1\ndata: {"error":{"message":"The server had an error')
        stream.give_up()

    asyncio.run(run())


def test_a_resumable_answer_says_the_same_as_a_plain_one(call):
    def parts(response):
        lines = response.text.split("\n")
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return [chunk["choices"] for chunk in chunks]

    plain = call.chat("say:Hello", stream=True)
    response = call.chat("say:Hello", stream=True, headers=RESUMABLE)
    stream_id = response.headers["x-zse-stream-id"]
    assert parts(response) == parts(plain)
    again = call("GET", f"/v1/streams/{stream_id}", headers={"last-event-id": "2"})
    assert again.text == response.text[response.text.index("id: 3\n") :]
    assert call("DELETE", f"/v1/streams/{stream_id}").status_code == 204
    assert call("GET", f"/v1/streams/{stream_id}").status_code == 404


def test_a_resumable_request_that_is_refused_keeps_its_status(make_caller, state, check_error):
    call = make_caller()
    state.admit(state.max_admitted)
    response = call.chat("say:Hello", stream=True, headers=RESUMABLE)
    check_error(response, 429, code="rate_limit_exceeded", kind=response.json()["error"]["type"])


def test_streams_of_one_key_leave_room_for_those_of_others():
    def scope_of(key_id):
        return {**SCOPE, "state": {"caller": Caller(key_id=key_id), "request_id": "r"}}

    async def run():
        kept = streams(resumable_streams=6)
        for number in range(4):
            kept.add(scope_of("greedy"), str(number), numbers(10**9))
        with pytest.raises(OverloadedError):
            kept.add(scope_of("greedy"), "more", numbers(10**9))
        kept.add(scope_of("other"), "one", numbers(10**9)).give_up()
        kept.add(SCOPE, "without a key", numbers(10**9)).give_up()
        for number in range(4):
            kept.get("greedy", str(number)).give_up()

    asyncio.run(run())


@pytest.mark.parametrize("given", ["7", "-2", "x", "1" * 40])
def test_an_id_that_no_event_has_is_refused(call, check_error, given):
    response = call.chat("say:Hi", stream=True, headers=RESUMABLE)
    path = f"/v1/streams/{response.headers['x-zse-stream-id']}"
    check_error(call("GET", path, headers={"last-event-id": given}), 400, param="Last-Event-ID")


def test_an_unknown_stream_is_not_found(call, check_error):
    check_error(call("GET", "/v1/streams/chatcmpl-1"), 404, code="not_found")


@pytest.mark.slow
def test_a_client_that_lost_its_connection_gets_every_token(start_server):
    server = start_server()
    server.wait_for_line("ready")
    body = {"messages": [{"role": "user", "content": "slow:100"}], "stream": True}
    with server.http.stream(
        "POST", "/v1/chat/completions", json=body, headers=RESUMABLE
    ) as response:
        path = f"/v1/streams/{response.headers['x-zse-stream-id']}"
        lines = response.iter_lines()
        before = [next(lines) for _ in range(20 * 3)]
    last = [line for line in before if line.startswith("id: ")][-1][4:]
    after = httpx.get(server.url + path, headers={"last-event-id": last}, timeout=60).text
    text = "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        for line in [*before, *after.split("\n")]
        if line.startswith("data: {")
    )
    assert text == "x" * 100
    assert after.endswith("data: [DONE]\n\n")
