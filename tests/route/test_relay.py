"""Requests and answers through the router: what is asked again, what is handed on, what is cut."""

import asyncio
import json

import httpx
import pytest
from route_world import CHAT, STREAM_HEAD, answer, chunk, refusal, stream, write_answer

from zse.serve.http.framing import ChunkFraming


def test_an_answer_comes_back_as_the_replica_gave_it(world):
    async def test(w):
        w.replicas[0].script = answer('{"a":1}', 201, content_type="application/json", x_kept="yes")
        found = await w.chat(authorization="Bearer k", **{"x-request-id": "mine"})
        assert (found.status_code, found.json()) == (201, {"a": 1})
        assert found.headers["x-kept"] == "yes"
        assert found.headers["x-request-id"] == "mine"
        (asked,) = w.replicas[0].asked
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.headers["x-request-id"] == "mine"
        assert asked.headers["host"] == w.addresses[0].netloc
        assert json.loads(asked.body)["model"] == "m"

    world(1, test)


def test_what_belongs_to_one_connection_or_claims_who_asks_does_not_cross(world):
    async def test(w):
        w.replicas[0].script = answer("{}", connection="x-secret, keep-alive", x_secret="1", te="x")
        found = await w.chat(
            **{
                "x-forwarded-for": "6.6.6.6",
                "forwarded": "for=6.6.6.6",
                "connection": "keep-alive, x-mine",
                "x-mine": "1",
                "te": "trailers",
            }
        )
        headers = w.replicas[0].asked[0].headers
        assert headers["x-forwarded-for"] == "127.0.0.1"
        assert not {"x-mine", "te", "forwarded", "connection", "keep-alive"} & headers.keys()
        assert not {"x-secret", "te"} & found.headers.keys()

    world(1, test)


def test_a_target_is_handed_on_letter_by_letter(world):
    async def test(w):
        await w.client.get("/v1/models/a%2Fb?x=%20y&z")
        assert w.replicas[0].asked[0].target == "/v1/models/a%2Fb?x=%20y&z"

    world(1, test)


def test_each_piece_of_a_stream_arrives_when_it_is_made(world):
    async def test(w):
        go_on = asyncio.Event()

        async def script(_reader, writer, _asked):
            writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await go_on.wait()
            writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

        w.replicas[0].script = script
        async with w.client.stream("POST", CHAT, json={}) as found:
            pieces = found.aiter_bytes()
            assert await anext(pieces) == b"data: 1\n\n"
            go_on.set()
            assert [each async for each in pieces] == [b"data: 2\n\n"]

    world(1, test)


def test_a_slow_client_holds_the_replica_up_and_loses_nothing(world):
    events = [b"data: " + b"%06d" % number * 200 + b"\n\n" for number in range(4000)]

    async def test(w):
        replica = w.replicas[0]
        replica.script = stream(*events)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.port, limit=1 << 12)
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}" % CHAT.encode())

        def pieces():
            return [c.pieces for m in w.fleet.members.values() for c in m.answering]

        await w.until(lambda: any(pieces()))
        await asyncio.sleep(0.3)  # in which too much would come
        held = [sum(map(len, each)) for each in pieces()]
        assert held[0] < 400_000  # of 4.8 MB
        data = bytearray()
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += await reader.read(1 << 16)
        del data[: data.index(b"\r\n\r\n") + 4]
        assert ChunkFraming().take(data) == b"".join(events)
        writer.close()

    world(1, test)


def test_a_client_that_leaves_ends_its_answer_at_the_replica(world):
    async def test(w):
        w.replicas[0].script = stream(*[b"data: x\n\n"] * 1000, pause=0.01)
        async with w.client.stream("POST", CHAT, json={}) as found:
            await anext(found.aiter_bytes())
        await w.until(lambda: w.replicas[0].cancelled)
        await w.until(lambda: not w.fleet.counts.in_flight)
        assert w.fleet.counts.cancelled == 1
        assert not w.fleet.counts.held_bytes

    world(1, test)


@pytest.mark.parametrize("status", [503, 429])
def test_what_a_replica_refuses_before_it_began_another_one_does(status, world):
    async def test(w):
        first, second = w.replicas
        first.script = refusal(status)
        second.script = answer("done")
        w.fleet._draw = lambda _: 0  # always the first two, and the first of them
        first_member = w.fleet.members[first.url]
        for _ in range(3):
            first_member.replica.saw_ready()
            assert (await w.chat()).text == "done"
        assert first.asked

    world(2, test)


def test_a_key_that_has_used_what_it_may_gets_no_more_from_another_replica(world):
    async def test(w):
        for replica in w.replicas:
            replica.script = refusal(429, kind="tokens")
        assert (await w.chat()).json()["error"]["type"] == "tokens"
        assert sum(w.num_asked) == 1

    world(3, test)


def test_when_all_queues_are_full_the_client_is_told_so(world):
    async def test(w):
        for replica in w.replicas:
            replica.script = refusal(429)
        found = await w.chat()
        assert found.status_code == 429
        assert w.num_asked == [1, 1]

    world(2, test, max_retries=5)


def test_a_replica_that_is_not_there_costs_nobody_an_answer(world):
    async def test(w):
        await w.replicas[0].stop()
        w.fleet.members[w.replicas[0].url].replica.saw_ready()
        for _ in range(6):
            assert (await w.chat()).text == "hello"

    world(2, test)


def test_what_may_have_begun_is_not_asked_again(world):
    async def lost(_reader, writer, _asked):
        writer.transport.abort()

    async def test(w):
        for replica in w.replicas:
            replica.script = lost
        found = await w.chat()
        assert found.status_code == 502
        assert found.json()["error"]["code"] == "replica_failed"
        assert sum(w.num_asked) == 1

    world(2, test)


@pytest.mark.parametrize(("options", "method"), [({"repeat": True}, "POST"), ({}, "GET")])
def test_what_may_be_done_twice_is_asked_again_where_nothing_was_sent_on(options, method, world):
    async def test(w):
        is_first = []

        async def once(_reader, writer, _asked):
            if is_first:
                await write_answer(writer, 200, "done")
            is_first.append(True)
            writer.transport.abort() if len(is_first) == 1 else None

        for replica in w.replicas:
            replica.script = once
        found = await w.client.request(method, "/v1/models")
        assert (found.text, sum(w.num_asked)) == ("done", 2)

    world(2, test, **options)


def test_an_answer_that_was_lost_is_told_as_lost_where_no_other_replica_takes_requests(world):
    async def test(w):
        async def lost(_reader, writer, _asked):
            writer.transport.abort()

        first, second = w.replicas
        first.script = lost
        second.health = 503
        await w.until(lambda: w.fleet.members[second.url].replica.state == "unready")
        found = await w.client.get("/v1/models")
        assert found.status_code == 502
        assert found.json()["error"]["code"] == "replica_failed"
        assert w.num_asked == [1, 0]

    world(2, test)


def test_a_stream_that_its_replica_breaks_off_ends_in_an_error_event(world):
    async def test(w):
        w.replicas[0].script = stream(b"data: 1\n\n", then=None)
        found = await w.chat()
        first, last, _ = found.text.split("\n\n")
        assert first == "data: 1"
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_failed"
        assert w.fleet.counts.broken == 1

    world(1, test)


def test_an_answer_of_known_length_that_is_broken_off_is_seen_to_be(world):
    async def script(_reader, writer, _asked):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def test(w):
        w.replicas[0].script = script
        with pytest.raises(httpx.RemoteProtocolError):
            await w.chat()
        await w.until(lambda: not w.fleet.counts.in_flight)

    world(1, test)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\rb\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: a\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000 + b"\r\n",
    ],
)
def test_an_answer_that_can_be_read_in_two_ways_is_not_handed_on(said, world):
    async def script(_reader, writer, _asked):
        writer.write(said)
        await writer.drain()
        await asyncio.sleep(0.2)

    async def test(w):
        w.replicas[0].script = script
        assert (await w.chat()).status_code == 502

    world(1, test)


def test_what_comes_behind_an_answer_is_nobodys(world):
    async def test(w):
        async def script(_reader, writer, asked):
            own = json.loads(asked.body)["messages"][0]["content"]
            stray = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + own.encode() + stray)
            await writer.drain()

        w.replicas[0].script = script
        assert [(await w.chat(text)).text for text in "abc"] == ["a", "b", "c"]

    world(1, test)


def test_what_one_replica_keeps_is_looked_for_at_all(world):
    async def test(w):
        for replica in w.replicas:
            replica.script = refusal(404)
        w.replicas[3].script = answer("kept")
        assert (await w.client.get("/v1/responses/resp_1")).text == "kept"
        going_on = {"previous_response_id": "resp_1", "input": "and?"}
        assert (await w.client.post("/v1/responses", json=going_on)).text == "kept"
        nobody = await w.client.post("/v1/responses", json={"input": "new"})
        assert nobody.status_code in (404, 200)
        before = sum(w.num_asked)
        w.replicas[3].script = refusal(404)
        assert (await w.client.get("/v1/responses/resp_2")).status_code == 404
        assert sum(w.num_asked) - before == 4

    world(4, test)


def test_a_body_that_is_too_long_is_refused_before_it_is_read(world):
    async def test(w):
        found = await w.client.post(CHAT, content=b"x" * ((1 << 20) + 1))
        assert found.status_code == 413
        assert not w.fleet.counts.held_bytes
        assert not sum(w.num_asked)

    world(1, test)


def test_a_client_that_leaves_amid_its_body_is_counted_as_one_that_left(world):
    async def test(w):
        _, writer = await asyncio.open_connection("127.0.0.1", w.port)
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{" % CHAT.encode()
        writer.write(head)
        await w.until(lambda: w.fleet.counts.held_bytes == 1)
        writer.transport.abort()
        await w.until(lambda: w.fleet.counts.cancelled == 1)
        assert not w.fleet.counts.held_bytes
        assert not w.fleet.counts.statuses
        assert not any(w.num_asked)

    world(1, test)


def test_a_long_body_crosses_whole(world):
    async def test(w):
        w.replicas[0].script = answer("ok")
        body = bytes(range(256)) * 3000
        await w.client.post("/v1/files", content=body)
        assert w.replicas[0].asked[0].body == body

    world(1, test)


def test_more_requests_than_the_router_takes_are_told_to_come_again(world):
    async def test(w):
        w.replicas[0].script = stream(*[b"data: x\n\n"] * 100, pause=0.02)
        running = [asyncio.create_task(w.chat()) for _ in range(2)]
        await w.until(lambda: w.fleet.counts.in_flight == 2)
        found = await w.chat()
        assert found.status_code == 429
        assert "retry-after" in found.headers
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    world(1, test, max_in_flight=2)


def test_a_websocket_is_told_that_it_is_not_routed(world):
    async def test(w):
        reader, writer = await asyncio.open_connection("127.0.0.1", w.port)
        writer.write(
            b"GET /ws/chat HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        writer.close()

    world(1, test)
