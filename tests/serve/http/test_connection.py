"""Connections on a real socket: what is a request, how long it may take, when it ends."""

import asyncio
import socket

import pytest
from starlette.responses import PlainTextResponse

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSING = GET[:-2] + b"connection: close\r\n\r\n"


async def echo(scope, receive, send):
    """Answer with the path and the body."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = PlainTextResponse(scope["path"].encode() + b"|" + body)
    await answer(scope, receive, send)


async def endless(scope, receive, send):
    """Stream for ever, until the client is gone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    assert (await receive())["type"] == "http.request"
    watcher = asyncio.create_task(receive())
    while not watcher.done():
        await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
        await asyncio.sleep(0)


def run(serving, app, talk, **options):
    async def all_of_it():
        async with serving(app, **options) as served:
            return await talk(served)

    return asyncio.run(all_of_it())


def exchange(serving, *parts, app=echo, **options):
    return run(serving, app, lambda served: served.exchange(*parts), **options)


def post(body, *headers):
    lines = [b"POST /p HTTP/1.1", b"host: localhost", b"connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def test_requests_on_one_connection_are_answered_in_order_though_they_came_at_once(serving):
    answers = exchange(serving, GET.replace(b"/ ", b"/a ") + GET.replace(b"/ ", b"/b ") + CLOSING)
    assert [part.split(b"\r\n")[0] for part in answers.split(b"\r\n\r\n")[1:]] == [
        b"/a|HTTP/1.1 200 OK",
        b"/b|HTTP/1.1 200 OK",
        b"/|",
    ]
    assert answers.count(b"connection: close") == 1


def test_a_request_may_come_byte_by_byte(serving):
    request = post(b"4\r\nabcd\r\n1\r\ne\r\n0\r\n\r\n", b"transfer-encoding: chunked")
    assert exchange(serving, *(bytes([byte]) for byte in request)).endswith(b"/p|abcde")


def test_a_long_body_comes_whole_however_slowly_it_is_read(serving):
    async def slow_echo(scope, receive, send):
        async def slow_receive():
            await asyncio.sleep(0.01)
            return await receive()

        await echo(scope, slow_receive, send)

    body = bytes(range(256)) * 4000
    length = b"content-length: %d" % len(body)
    assert exchange(serving, post(body, length), app=slow_echo).endswith(body)


def test_who_asks_may_send_a_body_is_told_so_when_it_is_read(serving):
    async def talk(served):
        reader, writer = await served.connect()
        writer.write(post(b"", b"content-length: 2", b"expect: 100-continue"))
        leave = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"ok")
        return leave, await reader.read()

    leave, answer = run(serving, echo, talk)
    assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.endswith(b"/p|ok")


def test_http_1_0_gets_an_answer_that_the_end_of_the_connection_ends(serving):
    async def stream(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"a", b"b", b""):
            message = {"type": "http.response.body", "body": piece, "more_body": bool(piece)}
            await send(message)

    answer = exchange(serving, b"GET / HTTP/1.0\r\n\r\n", app=stream)
    assert answer.endswith(b"\r\n\r\nab")
    assert b"transfer-encoding" not in answer


def test_a_head_request_gets_the_head_alone(serving):
    answer = exchange(serving, CLOSING.replace(b"GET", b"HEAD"))
    assert b"content-length: 2" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_an_absolute_target_is_a_path_where_it_names_the_same_host(serving):
    same = CLOSING.replace(b" / ", b" http://LOCALHOST/x?y=1 ")
    assert exchange(serving, same).endswith(b"/x|")
    other = CLOSING.replace(b" / ", b" http://other/x ")
    assert exchange(serving, other).startswith(b"HTTP/1.1 400 ")


def test_what_follows_a_refusal_is_read_away_so_that_the_client_can_read_it(serving):
    async def refuse(scope, receive, send):
        await PlainTextResponse("too large", 413)(scope, receive, send)

    length = b"content-length: 20000000"
    answer = exchange(serving, post(b"x" * 20_000_000, length), app=refuse)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"too large")


@pytest.mark.parametrize(
    ("headers", "sent"),
    [([(b"content-length", b"3")], b"too long"), ([(b"content-length", b"9")], b"short")],
)
def test_an_answer_that_breaks_its_length_cuts_the_connection(serving, headers, sent):
    async def lie(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": sent})

    assert len(exchange(serving, GET, app=lie).partition(b"\r\n\r\n")[2]) < 9


def test_a_crash_before_the_answer_is_a_500_and_one_within_it_cuts_the_connection(serving):
    async def crash(scope, receive, send):
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise ValueError("at /opt/secret")

    early = exchange(serving, GET, app=crash)
    assert early.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in early
    late = exchange(serving, GET.replace(b"/ ", b"/late "), app=crash)
    assert not late.endswith(b"0\r\n\r\n")


def test_no_header_of_an_answer_can_begin_another(serving):
    async def split(scope, receive, send):
        headers = [(b"x", b"a\r\nset-cookie: b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    answer = exchange(serving, GET, app=split)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in answer


# --- time -----------------------------------------------------------------------------------------


def test_a_client_that_takes_nothing_of_its_stream_is_cut_off_and_its_work_ends(serving):
    async def talk(served):
        reader, writer = await served.connect(limit=1024)
        writer.write(GET)
        await reader.readexactly(100)  # and nothing more
        (connection,) = served.state.connections
        await served.wait_until(lambda: not served.state.tasks)
        await served.wait_until(lambda: connection not in served.state.connections)

    run(serving, endless, talk, write_timeout=0.3)


def test_a_server_writes_until_its_client_has_read_the_answer(serving):
    body = bytes(16 << 20)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def talk(served):
        reader, writer = await served.connect(limit=1024)
        writer.write(CLOSING)
        await served.wait_until(lambda: served.server.is_writing)
        assert (await reader.read()).count(b"\0") == len(body)
        await served.wait_until(lambda: not served.server.is_writing)

    run(serving, app, talk)


def test_a_client_that_takes_its_stream_slowly_is_kept(serving):
    async def talk(served):
        reader, writer = await served.connect(limit=1024)
        writer.write(GET)
        await reader.readexactly(100)
        (connection,) = served.state.connections
        now = asyncio.get_running_loop().time()
        for number in range(15):
            await reader.readexactly(400_000)
            connection.enforce_deadlines(now + 9 * number)  # as if it had rested meanwhile
        assert served.state.tasks

    run(serving, endless, talk, write_timeout=20)


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nhost: loc", post(b"ab", b"content-length: 3")]
)
def test_a_request_that_does_not_come_in_time_is_given_up(serving, begun):
    answer = exchange(serving, begun, read_timeout=0.2)
    assert answer[:13] == (b"HTTP/1.1 408 " if begun else b"")
    assert b'"code":"request_timeout"' in answer or not begun


def test_drops_do_not_keep_a_head_open(serving):
    async def talk(served):
        reader, writer = await served.connect()
        answer = asyncio.create_task(reader.read())
        for byte in b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000:
            if answer.done():
                return answer.result()
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        return None

    assert run(serving, echo, talk, read_timeout=0.2).startswith(b"HTTP/1.1 408 ")


def test_empty_lines_do_not_keep_a_connection_open(serving):
    async def talk(served):
        reader, writer = await served.connect()
        end = asyncio.create_task(reader.read())
        for _ in range(1000):
            if end.done():
                return isinstance(end.exception(), ConnectionResetError) or not end.result()
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
        return False

    assert run(serving, echo, talk, read_timeout=0.2)


def test_a_connection_that_rests_too_long_is_closed(serving):
    async def talk(served):
        reader, writer = await served.connect()
        writer.write(GET)
        return await asyncio.wait_for(reader.read(), 60)

    answer = run(serving, echo, talk, keep_alive_timeout=0.2)
    assert answer.endswith(b"/|")


def test_a_request_that_nobody_has_read_yet_keeps_its_connection_from_being_closed(serving):
    async def talk(served):
        reader, writer = await served.connect()
        writer.write(GET)
        await reader.readuntil(b"/|")
        await served.wait_until(lambda: not served.state.tasks)
        (connection,) = served.state.connections
        writer.write(GET)  # it lies in the kernel when this returns, and the loop has no turn
        connection.shutdown()
        return await asyncio.wait_for(reader.read(), 60)

    answer = run(serving, echo, talk)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer
    assert answer.endswith(b"/|")


def test_only_connections_that_have_rested_long_enough_are_closed(serving):
    async def talk(served):
        async def rested():
            reader, writer = await served.connect()
            writer.write(GET)
            await reader.readuntil(b"/|")
            await served.wait_until(lambda: not served.state.tasks)
            return reader, writer

        long = await rested()
        since = asyncio.get_running_loop().time()
        short = await rested()
        served.server.close_idle(since=since)
        assert await long[0].read() == b""
        short[1].write(CLOSING)
        return await short[0].read()

    assert run(serving, echo, talk).endswith(b"/|")


# --- number ---------------------------------------------------------------------------------------


def test_whoever_rests_longest_makes_room(serving):
    async def talk(served):
        resting = [await served.connect() for _ in range(3)]
        await served.wait_until(lambda: len(served.state.connections) == 3)
        answer = await served.exchange(CLOSING)
        assert await resting[0][0].read() == b""
        return answer

    assert run(serving, echo, talk, max_connections=3).endswith(b"/|")


def test_when_all_are_at_work_a_health_check_is_answered_and_others_are_told(serving, monkeypatch):
    monkeypatch.setattr("zse.serve.http.connection.EXTRA_SECONDS", 60)

    async def app(scope, receive, send):
        await (endless if scope["path"] == "/busy" else echo)(scope, receive, send)

    async def talk(served):
        for _ in range(2):
            reader, writer = await served.connect()
            writer.write(GET.replace(b"/ ", b"/busy "))
            await reader.readexactly(10)
        probe = await served.exchange(GET.replace(b"/ ", b"/health/live "))
        other = await served.exchange(GET)
        monkeypatch.setattr("zse.serve.http.connection.EXTRA_SECONDS", 0.3)
        return probe, other, await served.exchange()

    probe, other, silent = run(serving, app, talk, max_connections=2)
    assert probe.endswith(b"/health/live|")
    assert other.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after" in other
    assert silent == b""


def test_a_client_that_resets_its_connection_leaves_nothing_behind(serving):
    async def talk(served):
        reader, writer = await served.connect()
        writer.write(GET)
        await reader.readexactly(10)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await served.wait_until(lambda: not served.state.connections and not served.state.tasks)

    run(serving, endless, talk)
